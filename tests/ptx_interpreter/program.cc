#include "ptx_interpreter/program.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "ptx_interpreter/opcodes.h"

namespace prnn::interpreter {
namespace {

constexpr std::string_view kEntry = ".entry ", kSpace = " \t\n";

bool starts(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

// The parts between any of `separators`, trimmed; empty ones left out.
std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(separators), text.size());
    if (const auto part = trimmed(text.substr(0, end)); !part.empty()) parts.push_back(part);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool is_of_a_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

// "-12", "0x1F", "0f3F800000" (the bits of a float), "0d..." (of a double).
std::optional<std::uint64_t> number(std::string_view text) {
  const bool is_negative = starts(text, "-");
  if (is_negative) text.remove_prefix(1);
  int base = 10;
  for (const std::string_view prefix : {"0x", "0f", "0F", "0d", "0D"})
    if (starts(text, prefix)) base = 16, text.remove_prefix(2);
  if (!text.empty() && text.back() == 'U') text.remove_suffix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return is_negative ? 0 - value : value;
}

constexpr std::pair<std::string_view, Preset> kSpecial[] = {{"%tid.x", kTid},
                                                            {"%ctaid.x", kCtaid},
                                                            {"%nctaid.x", kNctaid},
                                                            {"%cluster_ctarank", kClusterCtarank},
                                                            {"_", kSink}};

// One kernel, from its ".entry" on.
class Decoder {
 public:
  Decoder(const std::string& path, std::string_view whole, std::string_view name)
      : rest_(whole.substr(static_cast<std::size_t>(name.data() - whole.data()) + name.size())),
        line_(1 + std::count(whole.begin(), whole.end() - static_cast<std::ptrdiff_t>(rest_.size()),
                             '\n')) {
    entry_.file = path.c_str();
    entry_.name = name;
    entry_.registers.assign(kPresets, "");
    for (const auto& [special, preset] : kSpecial) entry_.registers[preset] = special;
    for (std::size_t at = 0; (at = whole.find(".shared ", at)) != whole.npos; ++at)
      shared_.push_back(symbol_of(whole.substr(at, whole.find_first_of(";\n", at) - at)));
  }

  Entry decode() {
    parameters(until(")"));
    until("{");
    scopes_.emplace_back();
    while (!scopes_.empty()) statement();
    for (auto& [branch, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) fail("no label " + std::string(label));
      entry_.code[branch].target = found->second;
    }
    return std::move(entry_);
  }

 private:
  using Scope = std::map<std::string_view, int>;  // names of registers declared in it

  [[noreturn]] void fail(const std::string& what) const {
    throw PtxError(std::string(entry_.file) + ":" + std::to_string(line_) + ": " + what);
  }

  // What comes before the first of `ends`; goes on behind it.
  std::string_view until(std::string_view ends) {
    const std::size_t end = rest_.find_first_of(ends);
    if (end == std::string_view::npos) fail("ends early");
    const std::string_view text = rest_.substr(0, end);
    line_ += std::count(text.begin(), text.end(), '\n');
    rest_.remove_prefix(end + 1);
    return text;
  }

  // "_Z4name" of ".param .align 8 .b8 _Z4name[336]".
  static std::string_view symbol_of(std::string_view declaration) {
    const auto words = split(declaration, " \t\n[");
    for (const std::string_view word : words)
      if (word[0] == '_' || std::isalpha(static_cast<unsigned char>(word[0]))) return word;
    return {};
  }

  void parameters(std::string_view list) {
    for (const std::string_view parameter : split(list, "(,")) {
      // Of so many elements, or of one; each of so many bits.
      std::size_t bytes = 0, alignment = 0, elements = 1;
      const auto words = split(parameter, " \t\n[]");
      for (std::size_t w = 0; w < words.size(); ++w) {
        const std::string_view word = words[w];
        if (word == ".align")
          alignment = number(words.at(w + 1)).value();
        else if (word[0] == '.' && std::isdigit(static_cast<unsigned char>(word.back())))
          bytes = number(word.substr(2)).value() / 8;
        else if (w + 1 == words.size() && number(word))
          elements = number(word).value();
      }
      alignment = std::max(alignment, bytes);
      entry_.parameter_bytes = (entry_.parameter_bytes + alignment - 1) / alignment * alignment;
      parameters_[symbol_of(parameter)] = entry_.parameter_bytes;
      entry_.parameter_bytes += bytes * elements;
    }
  }

  // A label, a scope's begin or end, a declaration or an instruction.
  void statement() {
    skip_space();
    if (rest_[0] == '{' || rest_[0] == '}') {
      if (rest_[0] == '{')
        scopes_.emplace_back();
      else
        scopes_.pop_back();
      rest_.remove_prefix(1);
      return;
    }
    std::size_t end = 0;
    while (end < rest_.size() && is_of_a_name(rest_[end])) ++end;
    if (end > 0 && rest_[end] == ':' && rest_[end + 1] != ':') {
      labels_[rest_.substr(0, end)] = static_cast<int>(entry_.code.size());
      rest_.remove_prefix(end + 1);
      return;
    }
    const std::uint32_t line = static_cast<std::uint32_t>(line_);
    const std::string_view text = trimmed(until(";"));
    if (starts(text, ".reg"))
      declare(text);
    else if (text[0] != '.')
      instruction(text, line);
    else if (!starts(text, ".pragma"))
      fail("unknown: " + std::string(text));
  }

  void skip_space() {
    while (true) {
      const std::size_t first = rest_.find_first_not_of(kSpace);
      if (first == std::string_view::npos) fail("ends early");
      line_ += std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(first), '\n');
      rest_.remove_prefix(first);
      if (!starts(rest_, "//")) return;
      until("\n");
      ++line_;
    }
  }

  // ".reg .b64 a, b" declares names of a scope. Of ".reg .b32 %r<99>" nothing is needed.
  void declare(std::string_view text) {
    for (const std::string_view name : split(text, " \t\n,"))
      if (name[0] != '.' && name.find('<') == std::string_view::npos)
        scopes_.back()[name] = new_register(name);
  }

  int new_register(std::string_view name) {
    entry_.registers.emplace_back(name);
    return static_cast<int>(entry_.registers.size()) - 1;
  }

  int register_of(std::string_view name) {
    for (const auto& [special, preset] : kSpecial)
      if (name == special) return preset;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end()) return found->second;
    if (name[0] != '%' || name.find('.') != std::string_view::npos) return kNoRegister;
    return scopes_.front()[name] = new_register(name);
  }

  void instruction(std::string_view text, std::uint32_t line) {
    Instruction out;
    out.text = text;
    out.line = line;
    if (text[0] == '@') {
      const std::size_t end = text.find_first_of(kSpace);
      out.guard_is_negated = text[1] == '!';
      out.guard = register_of(
          text.substr(out.guard_is_negated ? 2 : 1, end - (out.guard_is_negated ? 2 : 1)));
      text = trimmed(text.substr(end));
    }
    const std::size_t end = std::min(text.find_first_of(" \t\n{["), text.size());
    std::string opcode(text.substr(0, end));
    const auto operands = split(text.substr(end), ",{}[]|");
    if (opcode == "bra" || opcode == "bra.uni") {
      branches_.emplace_back(entry_.code.size(), operands.at(0));
    } else {
      for (const std::string_view operand : operands)
        if (operand == "%globaltimer" || operand == "%clock")  // no registers: they are read anew
          opcode += "." + std::string(operand.substr(1));
        else
          out.operands.push_back(operand_of(operand));
    }
    out.execute = find_opcode(opcode);
    if (out.execute == nullptr) fail("the interpreter has no " + opcode);
    entry_.code.push_back(std::move(out));
  }

  // "%r1", "%rd1+-16", "12", "_Z4name+16".
  Operand operand_of(std::string_view text) {
    if (const auto value = number(text)) return {kNoRegister, *value};
    const std::size_t plus = text.find('+');
    const std::string_view name = trimmed(text.substr(0, plus));
    Operand out;
    if (plus != std::string_view::npos)
      out.constant = number(trimmed(text.substr(plus + 1))).value();
    if (const auto found = parameters_.find(name); found != parameters_.end()) {
      out.reg = kParameters;
      out.constant += found->second;
    } else if (std::find(shared_.begin(), shared_.end(), name) != shared_.end()) {
      out.constant += kSharedWindow;
    } else {
      out.reg = register_of(name);
      if (out.reg == kNoRegister) fail("unknown: " + std::string(text));
    }
    return out;
  }

  std::string_view rest_;
  std::ptrdiff_t line_;
  Entry entry_;
  std::vector<std::string_view> shared_;  // symbols of dynamic shared memory
  std::map<std::string_view, std::uint64_t> parameters_;
  std::vector<Scope> scopes_;
  std::map<std::string_view, int> labels_;
  std::vector<std::pair<std::size_t, std::string_view>> branches_;
};

}  // namespace

Program::Program(const std::string& path) : path_(path) {
  std::ifstream file(path);
  if (!file) throw PtxError("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  text_ = text.str();
  const std::string_view all = text_;
  for (std::size_t at = 0; (at = all.find(kEntry, at)) != all.npos;) {
    at += kEntry.size();
    names_.push_back(all.substr(at, all.find('(', at) - at));
  }
}

Entry Program::decode(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) throw PtxError(path_ + " has no kernel " + std::string(name));
  return Decoder(path_, text_, *found).decode();
}

}  // namespace prnn::interpreter
