// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

// torch's wheel has Gloo in its library and c10d's header over it, and leaves out Gloo's own, which
// that header includes. These are the names that it mentions, as far as it must know them: enough
// to make a ProcessGroupGloo and to call it through c10d::Backend. Nothing of Gloo is called or
// derived from here, so that its layout does not matter; only references and pointers pass through.
namespace gloo {

class Context {
  public:
    void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {

class Store {
  public:
    virtual ~Store();
    virtual void set(const std::string& key, const std::vector<char>& data) = 0;
    virtual std::vector<char> get(const std::string& key) = 0;
    virtual void wait(const std::vector<std::string>& keys) = 0;
    virtual void wait(const std::vector<std::string>& keys,
                      const std::chrono::milliseconds& timeout) = 0;
};

} // namespace rendezvous

namespace transport {

class Device;
class UnboundBuffer;

} // namespace transport

} // namespace gloo
