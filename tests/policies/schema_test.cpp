// SPDX-License-Identifier: Apache-2.0
// Goal: the schema, its words and the printed documents speak of the same fields. Method: the paths
// that the readers ask for, held against the descriptions and against a whole document's YAML.
// Whether the schema accepts what it must is asked of a validator, in test_schema.py.
#include "base/json.h"
#include "policies/field_words.h"
#include "policies/shape.h"
#include "policies/yaml.h"

#include <gtest/gtest.h>

#include <set>

namespace berth::policies {

namespace {

void collect(const Shape& shape, const std::string& path, std::set<std::string>& out) {
    for (const FieldShape& field : shape.fields) {
        const std::string own = path.empty() ? field.name : path + "." + field.name;
        out.insert(own);
        for (const Form& form : field.forms)
            if (form.inner)
                collect(*form.inner, own + (form.kind == Form::Kind::kMaps ? "[]" : ""), out);
    }
    for (const Shape& one : shape.cases)
        collect(one, path.empty() ? one.word : path, out);
}

std::set<std::string> asked_for() {
    std::set<std::string> out;
    collect(document_shape(), "", out);
    return out;
}

} // namespace

TEST(Schema, EveryFieldHasOneSentenceAndNoSentenceIsLeftOver) {
    const std::set<std::string> fields = asked_for();
    EXPECT_GT(fields.size(), 90U);
    std::set<std::string> described;
    for (const auto& [path, words] : all_field_words()) {
        EXPECT_TRUE(described.insert(std::string(path)).second) << path << " is described twice";
        EXPECT_TRUE(words.ends_with('.')) << path;
    }
    for (const std::string& field : fields)
        EXPECT_TRUE(described.contains(field)) << field << " has no description";
    for (const std::string& field : described)
        EXPECT_TRUE(fields.contains(field)) << field << " is no field";
}

TEST(Schema, IsJsonOfOneKindOrOfAll) {
    const Result<std::string> all = json_schema();
    ASSERT_TRUE(all);
    const auto parsed = json::parse(*all, "the schema");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->at("oneOf").as_array().size(), 4U);
    const Result<std::string> one = json_schema("Instance");
    ASSERT_TRUE(one);
    const json::value instance = json::parse(*one, "the schema").value();
    EXPECT_EQ(instance.at("properties").at("kind").at("const").as_string(), "Instance");
    const json::value& spec = instance.at("properties").at("spec");
    EXPECT_EQ(spec.at("additionalProperties").as_bool(), false);
    EXPECT_FALSE(spec.as_object().contains("required")); // a standby has no engine of its own
    EXPECT_EQ(spec.at("properties").at("deviceCount").at("minimum").as_int64(), 1);
    EXPECT_EQ(spec.at("properties").at("restart").at("default").as_string(), "OnFailure");
    EXPECT_EQ(spec.at("properties").at("devices").at("anyOf").as_array().size(), 2U);
    const Result<std::string> wrong = json_schema("Instanze");
    ASSERT_FALSE(wrong);
    EXPECT_EQ(wrong.error().message, "no kind 'Instanze'; did you mean 'Instance'?");
}

} // namespace berth::policies
