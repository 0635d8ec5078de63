// The name by which programs include boringtun's header: with -I…/include/taupe they find this
// one.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#pragma once

#include "../taupe.h"
