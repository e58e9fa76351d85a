// operator new that counts, and fails when asked to. A unit of its own, so that no compiler pairs these with its
// built-in ones. The shared library takes them too: a program's operator new is that of all its libraries.
#include <cstdlib>
#include <new>

namespace ringfold::test {
long g_allocations = 0;
long g_fail_at = -1;  ///< the allocation, counted from 0 by g_allocations, that fails
}  // namespace ringfold::test

namespace {
bool fails() { return ringfold::test::g_allocations++ == ringfold::test::g_fail_at; }
}  // namespace

void* operator new(size_t bytes) {
  if (fails()) throw std::bad_alloc();
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

void* operator new(size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  if (fails()) return nullptr;
  const auto a = static_cast<size_t>(align);
  return std::aligned_alloc(a, (bytes + a - 1) / a * a);
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
