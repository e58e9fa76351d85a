// operator new that counts. A unit of its own, so that no compiler pairs these with its built-in ones.
#include "unit/count_new.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace ringfold::test {
int64_t g_aligned_bytes = 0;
int64_t g_calls = 0;
}  // namespace ringfold::test

void* operator new(size_t bytes) {
  ++ringfold::test::g_calls;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

void* operator new(size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  ++ringfold::test::g_calls;
  const auto a = static_cast<size_t>(align);
  if (bytes > (size_t{1} << 40)) return nullptr;
  ringfold::test::g_aligned_bytes += static_cast<int64_t>(bytes);
  const size_t whole = (bytes + a - 1) / a * a;
  void* p = std::aligned_alloc(a, whole);
  if (p != nullptr) std::memset(p, 0xFF, whole);  // memory as a former owner may have left it
  return p;
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
