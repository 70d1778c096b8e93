// SPDX-License-Identifier: Apache-2.0
// A first pass over the text by the parser's events, before any node is built. yaml-cpp's LoadAll
// never ends on some short texts (a document that begins with ',' gives empty documents at the same
// place for ever), and aliases can make a small text huge: both are refused here.
#include "policies/fields.h"
#include "policies/yaml.h"

#include <yaml-cpp/eventhandler.h>

#include <sstream>

namespace berth::policies {

namespace {

constexpr size_t kNodesMax = 200'000;

class Scan : public YAML::EventHandler {
  public:
    explicit Scan(const std::string& file) : file_(file) {}

    void OnDocumentStart(const YAML::Mark& mark) override {
        if (++documents_ > kDocumentsMax)
            refuse(mark, "more than " + std::to_string(kDocumentsMax) + " documents");
        if (documents_ > 1 && mark.pos == start_)
            refuse(mark, "not YAML: a document cannot begin with this");
        start_ = mark.pos;
    }
    void OnDocumentEnd() override {}
    void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { node(mark); }
    void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
        refuse(mark, "aliases (*name) are not read here; write the value out");
    }
    void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  const std::string&) override {
        node(mark);
    }
    void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                         YAML::EmitterStyle::value) override {
        node(mark);
    }
    void OnSequenceEnd() override {}
    void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                    YAML::EmitterStyle::value) override {
        node(mark);
    }
    void OnMapEnd() override {}

  private:
    void node(const YAML::Mark& mark) {
        if (++nodes_ > kNodesMax)
            refuse(mark, "more than " + std::to_string(kNodesMax) + " values");
    }
    [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& why) const {
        refuse_yaml(file_, mark.line + 1, mark.column + 1, why);
    }

    const std::string& file_;
    size_t documents_ = 0;
    size_t nodes_ = 0;
    int start_ = -1;
};

} // namespace

void scan_yaml(const std::string& text, const std::string& file) {
    std::istringstream in(text);
    YAML::Parser parser(in);
    Scan scan(file);
    while (parser.HandleNextDocument(scan)) {
    }
}

} // namespace berth::policies
