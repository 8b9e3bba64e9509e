// The C++ header: types, vectors that get their saved length, contexts that are skipped, pointers, a file. Prints what it has; the tests compare.
//
//   templates STEPS [KILL_AT]
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <mend_app.hpp>

namespace app = mend::app;

enum class Phase : short { Melt = 3, Cool = 5 };

int main(int argc, char **argv) {
    const long steps = argc > 1 ? std::atol(argv[1]) : 10;
    long kill_at = argc > 2 ? std::atol(argv[2]) : -1;
    app::Session session("templates 1");
    if (mend_app_restarting())
        kill_at = -1;
    std::vector<double> grown;
    int prepared = 0;
    app::Context main_part("main");
    app::variable("prepared", prepared);
    {
        app::Context prepare("prepare");
        if (!prepare.skip()) {
            prepared++;
            std::cerr << "templates: prepares\n";
        }
    }
    if (!mend_app_restarting())
        for (int i = 0; i < 1000; i++)
            grown.push_back(i * 0.5);
    app::variable("grown", grown);
    long step = 0;
    Phase phase = Phase::Melt;
    std::array<std::complex<float>, 3> waves{};
    double *cursor = grown.data() + 1, *end = grown.data() + grown.size(), *none = nullptr;
    long double third = 1.0L / 3;
    app::variable("step", step);
    app::variable("phase", phase);
    app::variable("waves", waves);
    app::variable("cursor", cursor);
    app::variable("end", end);
    app::variable("none", none);
    app::variable("third", third);
    FILE *log = mend_app_fopen("log", "templates.log", "w");
    if (!log)
        return 3;
    for (; step < steps; step++) {
        if (app::checkpoint())
            std::cerr << "templates: goes on at step " << step << "\n";
        if (step == kill_at)
            std::raise(SIGKILL);
        *cursor += static_cast<double>(third) * static_cast<double>(step);
        if (++cursor == end)
            cursor = grown.data();
        waves[static_cast<std::size_t>(step % 3)] += std::complex<float>(1, static_cast<float>(step));
        phase = step % 2 ? Phase::Cool : Phase::Melt;
        std::fprintf(log, "step %ld\n", step);
    }
    double sum = 0;
    for (double value : grown)
        sum += value;
    std::cout.precision(17);
    std::cout << "templates sum=" << sum << " prepared=" << prepared << " phase=" << static_cast<int>(phase) << " waves=" << waves[0] << waves[1] << waves[2]
              << " cursor=" << cursor - grown.data() << " none=" << (none == nullptr) << " log=" << std::ftell(log) << "\n";
    mend_app_fclose(log);
    return 0;
}
