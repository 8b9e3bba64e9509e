// libmend-app for C++17: the functions of mend_app.h with types deduced and errors thrown. In MPI programs include mend_app_mpi.h as well, start with
// mend_app_init_mpi() and adopt that with Session(Session::adopt).
#ifndef MEND_APP_HPP
#define MEND_APP_HPP

#include <array>
#include <complex>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "mend_app.h"

namespace mend::app {

// What mend_app_error() says; code() is below 0.
class Error : public std::runtime_error {
public:
    explicit Error(int code) : std::runtime_error(mend_app_error()), code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

inline int check(int result) {
    if (result < 0)
        throw Error(result);
    return result;
}

// The mend_app_type of a C++ type.
template <typename T> constexpr int type_of() {
    if constexpr (std::is_same_v<T, float>)
        return MEND_APP_FLOAT;
    else if constexpr (std::is_same_v<T, double>)
        return MEND_APP_DOUBLE;
    else if constexpr (std::is_same_v<T, long double>)
        return MEND_APP_LONG_DOUBLE;
    else if constexpr (std::is_same_v<T, std::complex<float>>)
        return MEND_APP_COMPLEX_FLOAT;
    else if constexpr (std::is_same_v<T, std::complex<double>>)
        return MEND_APP_COMPLEX_DOUBLE;
    else if constexpr (std::is_same_v<T, std::byte>)
        return MEND_APP_BYTES;
    else if constexpr (std::is_pointer_v<T>)
        return MEND_APP_POINTER;
    else if constexpr (std::is_enum_v<T>)
        return type_of<std::underlying_type_t<T>>();
    else {
        static_assert(std::is_integral_v<T>, "not a type that libmend-app saves: register its members");
        if constexpr (std::is_signed_v<T>)
            return MEND_APP_SIGNED(T);
        else
            return MEND_APP_UNSIGNED(T);
    }
}

// Who owns a variable.
enum Whose { Private = MEND_APP_PRIVATE, Replicated = MEND_APP_REPLICATED };

// One variable. True: it was restored.
template <typename T> bool variable(const char *name, T &value, Whose whose = Private) {
    return check(mend_app_variable(name, &value, type_of<T>(), 0, nullptr, whose)) == MEND_APP_RESTORED;
}

// A one-dimensional array of fixed length.
template <typename T, std::size_t N> bool variable(const char *name, std::array<T, N> &value, Whose whose = Private) {
    const std::uint64_t extent = N;
    return check(mend_app_variable(name, value.data(), type_of<T>(), 1, &extent, whose)) == MEND_APP_RESTORED;
}

// A vector. Where a state is restored it gets its saved length first; it must keep its length and place from then on.
template <typename T> bool variable(const char *name, std::vector<T> &value, Whose whose = Private) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no elements in memory: use char");
    std::uint64_t extents[MEND_APP_DIMENSIONS];
    if (mend_app_saved_shape(name, extents) == 1)
        value.resize(extents[0]);
    extents[0] = value.size();
    return check(mend_app_variable(name, value.data(), type_of<T>(), 1, extents, whose)) == MEND_APP_RESTORED;
}

// An array spread over the ranks; dimensions by mend_app_whole, mend_app_block, mend_app_cyclic, mend_app_list.
template <typename T> bool array(const char *name, T *values, const std::vector<mend_app_dimension> &dimensions) {
    return check(mend_app_array(name, values, type_of<T>(), static_cast<int>(dimensions.size()), dimensions.data())) == MEND_APP_RESTORED;
}

// A safe point. True: the state was restored here.
inline bool checkpoint() {
    return check(mend_app_checkpoint()) == MEND_APP_RESTORED;
}

// Asks for a move of ranks ("1,4-6" or "all") to hosts: see mend_app_migrate(). checkpoint() moves them; afterwards mend_app_world() is another one.
inline void migrate(const char *ranks, const char *hosts = "") {
    check(mend_app_migrate(ranks, hosts));
}

// A part of the program, from here to the end of the block. If skip() is true, the saved run had done with it.
class Context {
public:
    explicit Context(const char *name) : entered_(check(mend_app_enter(name)) != MEND_APP_SKIP) {}
    ~Context() {
        if (entered_)
            mend_app_leave();
    }
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    bool skip() const noexcept { return !entered_; }

private:
    bool entered_;
};

// The library from here to the end of the block. In MPI programs that ends before MPI_Finalize. Where an exception leaves the block, the run hasn't ended well: this rank waits
// for nobody then, and the next run goes on from the newest checkpoint. The other ranks do wait for this one: catch the exception outside, and end the job (MPI_Abort).
class Session {
public:
    enum Adopt { adopt };
    explicit Session(const char *program = nullptr, const char *configuration = nullptr) { check(mend_app_init(program, configuration)); }
    explicit Session(Adopt) {}
    ~Session() {
        if (std::uncaught_exceptions() > exceptions_)
            mend_app_abandon();
        else
            mend_app_finalize();
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

private:
    int exceptions_ = std::uncaught_exceptions();
};

} // namespace mend::app

#endif
