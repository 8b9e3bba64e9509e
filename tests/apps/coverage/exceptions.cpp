// C++: a thread inside a handler, an exception kept for later, objects on the stack and in threads that want to be destroyed,
// standard containers and synchronization.
#include "coverage.h"
#include <condition_variable>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static std::atomic<int> destroyed{0}, inside{0};

struct Counted {
  std::string name;
  explicit Counted(std::string n) : name(std::move(n)) {}
  ~Counted() { destroyed++; }
};

struct Own : std::runtime_error {
  std::vector<int> values;
  explicit Own(int n) : std::runtime_error("own " + std::to_string(n)), values(n, n) {}
};

static thread_local Counted of_thread("thread");

static int deep(int depth) {
  Counted guard("depth " + std::to_string(depth));
  if (depth == 0) throw Own(17);
  return deep(depth - 1) + 1;
}

int main() {
  std::exception_ptr kept;
  try {
    deep(10);
  } catch (...) {
    kept = std::current_exception();
  }
  CHECK(destroyed == 11);
  std::map<std::string, std::function<int(int)>> functions;
  for (int i = 0; i < 100; i++) functions["f" + std::to_string(i)] = [i](int x) { return x * i; };
  std::promise<int> promise;
  std::future<int> future = promise.get_future();
  std::thread waiter([&] { CHECK(future.get() == 5); });
  std::mutex mutex;
  std::condition_variable_any condition;
  bool door = false;
  std::thread handler([&] {
    of_thread.name = "handler";
    try {
      deep(50);
    } catch (const Own &caught) {
      // Saved here, in the middle of a handler, with another exception being thrown inside.
      inside = 1;
      try {
        std::unique_lock<std::mutex> lock(mutex);
        condition.wait(lock, [&] { return door; });
        throw std::out_of_range("inner");
      } catch (const std::out_of_range &inner) {
        CHECK(std::string(inner.what()) == "inner" && std::string(caught.what()) == "own 17");
      }
      CHECK(caught.values == std::vector<int>(17, 17));
      try {
        throw;
      } catch (const std::runtime_error &again) {
        CHECK(std::string(again.what()) == "own 17");
      }
    }
    CHECK(of_thread.name == "handler" && std::uncaught_exceptions() == 0);
  });
  while (!inside) std::this_thread::yield();
  ready();
  await_go();
  {
    std::lock_guard<std::mutex> lock(mutex);
    door = true;
  }
  condition.notify_all();
  handler.join();
  CHECK(destroyed == 11 + 51 + 1);
  promise.set_value(5);
  waiter.join();
  try {
    std::rethrow_exception(kept);
  } catch (const Own &own) {
    CHECK(std::string(own.what()) == "own 17" && own.values.size() == 17);
  }
  int thrown = 0;
  for (int i = 0; i < 1000; i++) try {
      deep(i % 20);
    } catch (const std::exception &) {
      thrown++;
    }
  CHECK(thrown == 1000);
  for (int i = 0; i < 100; i++) CHECK(functions.at("f" + std::to_string(i))(3) == 3 * i);
  return verdict();
}
