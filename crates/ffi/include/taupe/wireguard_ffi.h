// The name of boringtun's header. Programs for boringtun find this file with -I…/include/taupe.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#pragma once

#include "../taupe.h"
