// Memory for the length of a call, some of which a thread keeps: new pages cost more than what is
// done with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace qmaps {

class Workspace {
  public:
    static constexpr std::size_t kKept = std::size_t{8} << 20;

    // Gives back at its end what was taken since its beginning.
    class Scope {
      public:
        explicit Scope(Workspace& space) : space_(space), used_(space.used_), more_(space.more_.size()) {}
        ~Scope() {
            space_.used_ = used_;
            space_.more_.resize(more_);
        }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

      private:
        Workspace& space_;
        std::size_t used_, more_;
    };

    // Room for `count` numbers, whatever they are at first.
    template <class T>
    T* take(std::int64_t count) {
        const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
        if (bytes > kKept - used_) {
            more_.emplace_back(new std::byte[bytes]);
            return reinterpret_cast<T*>(more_.back().get());
        }
        if (!kept_) kept_.reset(new std::byte[kKept]);
        T* room = reinterpret_cast<T*>(kept_.get() + used_);
        used_ += bytes;
        return room;
    }

    template <class T>
    T* zeros(std::int64_t count) {
        T* room = take<T>(count);
        std::memset(room, 0, static_cast<std::size_t>(count) * sizeof(T));
        return room;
    }

  private:
    std::unique_ptr<std::byte[]> kept_;
    std::size_t used_ = 0;
    std::vector<std::unique_ptr<std::byte[]>> more_;
};

// That of this thread.
inline Workspace& workspace() {
    thread_local Workspace space;
    return space;
}

}  // namespace qmaps
