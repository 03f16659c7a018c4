// A team of threads that carry out one piece of work together. The caller is one of them.
//
// Inside a piece of work, phases are parted by barriers; within a phase each thread takes the next item until none is
// left, so a thread that the machine holds up does less. Which thread takes what never changes a result.
#pragma once

#include <atomic>

namespace pinrail {

class Team {
 public:
  explicit Team(int threads);
  ~Team();  // ends its threads: where another number of them is asked for
  Team(const Team&) = delete;

  int size() const { return size_; }

  // Calls work(context, thread) for thread = 0 … size - 1, and waits for all. One caller at a time.
  void run(void (*work)(void* context, int thread), void* context);

  // ---- inside a piece of work

  // The next item of this phase, from 0.
  int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Waits until every thread has come here; then the next phase's items begin at 0.
  void barrier();

 private:
  struct Threads;
  void member(int thread);

  int size_;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
  alignas(64) std::atomic<unsigned> rounds_{0};  // pieces of work begun
  alignas(64) std::atomic<bool> ends_{false};
  void (*work_)(void*, int) = nullptr;
  void* context_ = nullptr;
  Threads* threads_;
};

}  // namespace pinrail
