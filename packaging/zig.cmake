# Compiles for an old glibc, of this or another processor, with the Clang of `pip install ziglang`.
# The environment says what for, PRNN_ZIG_TARGET, and where the programs cc, c++, ar and ranlib are,
# PRNN_ZIG_TOOLS (packaging/wheels.py writes them).
set(CMAKE_SYSTEM_NAME Linux)
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "$ENV{PRNN_ZIG_TARGET}")
set(CMAKE_C_COMPILER "$ENV{PRNN_ZIG_TOOLS}/cc")
set(CMAKE_CXX_COMPILER "$ENV{PRNN_ZIG_TOOLS}/c++")
set(CMAKE_CXX_FLAGS_INIT "-g0")
set(CMAKE_AR "$ENV{PRNN_ZIG_TOOLS}/ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "$ENV{PRNN_ZIG_TOOLS}/ranlib" CACHE FILEPATH "")
set(CMAKE_STRIP "" CACHE FILEPATH "")  # the linker does it
# Python is asked for its headers, which are the same for both processors: it runs here, as it is.
set(CMAKE_CROSSCOMPILING_EMULATOR /usr/bin/env)
