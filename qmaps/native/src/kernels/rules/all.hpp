// Every rule by the name that optimizers ask for.
#include "adamw.hpp"

static constexpr Rule kRules[] = {
    {"adamw", 2, adamw::kScalars, adamw::apply, adamw::advance, adamw::reads},
};
