// What the machine says where every thread waits.
#include <algorithm>

#include "emulator/machine.h"

namespace prnn::emulator {
namespace {

constexpr std::size_t kMostPlaces = 8;  // in the message

}  // namespace

std::string source_of(const Place& place) {
  const std::string_view path = place.where.file;
  if (path.empty()) return "";
  const std::string_view file = path.substr(path.find_last_of('/') + 1);
  return " (" + std::string(file) + ":" + std::to_string(place.where.line) + ")";
}

// "block 3 @ spin x 256 (exchange.cuh:41)", for every place at which threads wait.
std::string Machine::deadlock() const {
  struct Waiting {
    const Block* block;
    Place place;
    int threads;
  };
  std::vector<Waiting> all;
  for (const Cluster& cluster : clusters_) {
    for (const auto& block : cluster.blocks) {
      for (const Thread& thread : block->threads) {
        if (thread.state == State::kEnded) continue;
        const auto same = std::find_if(all.begin(), all.end(), [&](const Waiting& w) {
          return w.block == block.get() && same_place(w.place, thread.place);
        });
        if (same == all.end()) {
          all.push_back({block.get(), thread.place, 1});
        } else {
          ++same->threads;
        }
      }
    }
  }
  std::string out = "deadlock: every thread waits, and nothing is under way";
  for (std::size_t i = 0; i < std::min(all.size(), kMostPlaces); ++i) {
    out += "\n  block " + std::to_string(all[i].block->index) + " @ " + all[i].place.operation +
           " x " + std::to_string(all[i].threads) + source_of(all[i].place);
  }
  if (all.size() > kMostPlaces)
    out += "\n  and " + std::to_string(all.size() - kMostPlaces) + " places more";
  if (clusters_left_ > 0)
    out += "\n  " + std::to_string(clusters_left_ * shape.cluster) +
           " blocks have not started: " + std::to_string(options.resident_blocks) +
           " can be resident";
  return out;
}

}  // namespace prnn::emulator
