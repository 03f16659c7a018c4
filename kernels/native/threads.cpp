#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <thread>
#include <vector>

namespace pinrail {

namespace {

constexpr int SPINS = 2000;       // pauses, some 50 µs, before a waiting thread offers its processor to others
constexpr int IDLE_SPINS = 200;   // before a thread without work goes to sleep: the host needs the processors then

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Signals are the main thread's, in which Python handles them.
struct Signals {
  sigset_t before;
  Signals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
};

}  // namespace

struct Team::Threads {
  std::vector<std::thread> list;
};

Team::Team(int threads) : size_(threads), threads_(new Threads) {
  Signals held;
  for (int i = 1; i < threads; i++) threads_->list.emplace_back([this, i] { member(i); });
}

Team::~Team() {
  ends_.store(true);
  rounds_.fetch_add(1);
  rounds_.notify_all();
  for (auto& thread : threads_->list) thread.join();
  delete threads_;
}

void Team::run(void (*work)(void*, int), void* context) {
  work_ = work;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  rounds_.fetch_add(1, std::memory_order_release);
  rounds_.notify_all();
  work(context, 0);
  barrier();
}

void Team::member(int thread) {
  for (unsigned seen = 0;; seen++) {
    for (int i = 0; i < IDLE_SPINS && rounds_.load(std::memory_order_acquire) == seen; i++) pause();
    rounds_.wait(seen, std::memory_order_acquire);
    if (ends_.load()) return;
    work_(context_, thread);
    barrier();
  }
}

void Team::barrier() {
  unsigned phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++) {
    if (spins < SPINS) pause();
    else sched_yield();
  }
}

}  // namespace pinrail
