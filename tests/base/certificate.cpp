// SPDX-License-Identifier: Apache-2.0
#include "tests/base/certificate.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <sys/stat.h>

namespace berth::http {

namespace {

void require(bool done) {
    if (!done)
        throw std::runtime_error("OpenSSL did not make the test's certificate");
}

} // namespace

Certificate::Certificate(const std::string& folder)
    : certificate_file(folder + "/cert.pem"), key_file(folder + "/key.pem") {
    std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(EVP_EC_gen("P-256"), ::EVP_PKEY_free);
    std::unique_ptr<X509, decltype(&::X509_free)> made(::X509_new(), ::X509_free);
    require(key && made);
    ::X509_set_version(made.get(), 2);
    ::ASN1_INTEGER_set(::X509_get_serialNumber(made.get()), 1);
    ::X509_gmtime_adj(::X509_getm_notBefore(made.get()), -60);
    ::X509_gmtime_adj(::X509_getm_notAfter(made.get()), 3600);
    ::X509_set_pubkey(made.get(), key.get());
    X509_NAME* name = ::X509_get_subject_name(made.get());
    ::X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("berth test"), -1, -1, 0);
    ::X509_set_issuer_name(made.get(), name);
    std::unique_ptr<X509_EXTENSION, decltype(&::X509_EXTENSION_free)> names(
        ::X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1"),
        ::X509_EXTENSION_free);
    require(names && ::X509_add_ext(made.get(), names.get(), -1) == 1 &&
            ::X509_sign(made.get(), key.get(), ::EVP_sha256()) > 0);
    std::unique_ptr<FILE, decltype(&::fclose)> certificate(::fopen(certificate_file.c_str(), "w"),
                                                           ::fclose);
    std::unique_ptr<FILE, decltype(&::fclose)> secret(::fopen(key_file.c_str(), "w"), ::fclose);
    require(certificate && secret && ::PEM_write_X509(certificate.get(), made.get()) == 1 &&
            ::PEM_write_PrivateKey(secret.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                   nullptr) == 1);
    require(::chmod(key_file.c_str(), 0600) == 0);
}

} // namespace berth::http
