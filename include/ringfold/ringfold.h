// Everything of the public C++ API.
#pragma once

#include "ringfold/choose.h"
#include "ringfold/commit.h"
#include "ringfold/conv.h"
#include "ringfold/decode.h"
#include "ringfold/fold.h"
#include "ringfold/gated_norm.h"
#include "ringfold/layer.h"
#include "ringfold/pool.h"
#include "ringfold/registry.h"
#include "ringfold/verify.h"
