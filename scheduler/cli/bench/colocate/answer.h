// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace berth::cli::bench {

// One online request and what became of it. Times are seconds since the phase began.
struct Answer {
    double due_s = 0;
    double sent_s = 0;           // the generator's own lateness is in it
    std::vector<double> event_s; // when each event with text, and the last, had been read
    std::vector<double> full_s;  // of these only where text came: at most one a token
    double end_s = 0;
    uint64_t tokens = 0; // by the engine's word
    int status = 0;      // of HTTP; 0: there was none
    bool done = false;   // read to its proper end
    std::string text;
    std::string error; // why it is not done

    std::optional<double> first_token_ms() const; // from the moment that it was due
    std::optional<double> per_token_ms() const;   // after the first; needs two tokens
    std::vector<double> gaps_ms() const;          // between two events
};

// Reads an OpenAI completion stream (server-sent events) as it comes. One thread.
class AnswerReader {
  public:
    explicit AnswerReader(Answer& answer) : answer_(&answer) {}
    // A piece of the body, that had been read at `at_s`.
    void take(std::string_view piece, double at_s);

  private:
    void take_event(std::string_view data, double at_s);

    Answer* answer_;
    std::string rest_; // of a line that is not whole yet
};

} // namespace berth::cli::bench
