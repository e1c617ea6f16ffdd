"""exp, log and the Jensen-Shannon cell for numba loops: float32 versions that LLVM vectorises.

The float64 versions call libm. The float32 ones are branch-free polynomials, right to about one
unit in the last place, and treat every number below the normal range as its smallest member.
numba's cache watches the file of a kernel, not this one: after an edit here, delete the cache.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array

# No "nnan"/"ninf": tables may hold -inf. "reassoc" lets LLVM keep one partial sum per SIMD lane.
FAST = {"reassoc", "contract", "arcp", "nsz"}


@intrinsic
def widest_vectors(typingctx):
    """Lets LLVM use 512-bit registers in the function that calls this, where a CPU has them.

    By default it holds back for fear of lower clock rates; loops of this length gain by a third.
    """

    def codegen(context, builder, signature, args):
        # llvmlite knows only LLVM's unquoted attributes by name; they are a set of strings.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def _multiply_add(typingctx, x, y, z):
    """x·y + z, closed to reassociation: ln 2 in two parts must not be added up beforehand."""

    def codegen(context, builder, signature, args):
        f32 = ir.FloatType()
        function = ir.FunctionType(f32, [f32, f32, f32])
        return builder.call(builder.module.declare_intrinsic("llvm.fmuladd", [f32], function), args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def subtract(typingctx, x, y):
    """x − y, closed to reassociation: adding a constant and taking it off again rounds.

    And two logs of zero must meet each other, not first a number that they would swallow.
    """

    def codegen(context, builder, signature, args):
        # numba adds its own flags to instructions without any; this one changes nothing here.
        return builder.fsub(*args, flags=("nsz",))

    return x(x, y), codegen


@intrinsic
def _shift_exponent(typingctx, mantissa, n):
    """float32 mantissa · 2**n, the whole number n being what was added to 1.5 · 2**23."""

    def codegen(context, builder, signature, args):
        i32 = ir.IntType(32)
        bits = builder.shl(builder.bitcast(args[1], i32), i32(23))
        return builder.bitcast(builder.add(builder.bitcast(args[0], i32), bits), ir.FloatType())

    return types.float32(types.float32, types.float32), codegen


@intrinsic
def multiply(typingctx, x, y):
    """x · y, closed to reassociation: of four factors some pairs leave the range, others do not."""

    def codegen(context, builder, signature, args):
        return builder.fmul(*args, flags=("nsz",))

    return x(x, y), codegen


@intrinsic
def prefetch(typingctx, array, i, j):
    """Asks for the cache line of ``array[i, j]`` (C order); harmless at any address."""

    def codegen(context, builder, signature, args):
        table = make_array(signature.args[0])(context, builder, args[0])
        width = builder.extract_value(table.shape, 1)
        place = builder.gep(table.data, [builder.add(builder.mul(args[1], width), args[2])])
        byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], function)
        builder.call(ask, [builder.bitcast(place, byte), i32(0), i32(2), i32(1)])
        return context.get_dummy_value()

    return types.none(array, i, j), codegen


@intrinsic
def _estimate_quotient(typingctx, x, y):
    """x / y for finite float32: an estimate of 1/y and a Newton step, where a CPU has the former.

    Right to a unit in the last place, at half the price of a division. ``y`` must be normal.
    """

    def codegen(context, builder, signature, args):
        return builder.fdiv(*args, flags=("reassoc", "contract", "arcp", "nsz", "ninf"))

    return types.float32(types.float32, types.float32), codegen


@intrinsic
def _exponent(typingctx, x):
    """The n of x = m · 2**n with m between sqrt(1/2) and sqrt(2), as a float32."""

    def codegen(context, builder, signature, args):
        i32 = ir.IntType(32)
        bits = builder.sub(builder.bitcast(args[0], i32), i32(0x3F3504F3))
        return builder.sitofp(builder.ashr(bits, i32(23)), ir.FloatType())

    return types.float32(types.float32), codegen


@intrinsic
def _mantissa(typingctx, x):
    """The m of x = m · 2**n with m between sqrt(1/2) and sqrt(2)."""

    def codegen(context, builder, signature, args):
        i32 = ir.IntType(32)
        bits = builder.bitcast(args[0], i32)
        n = builder.ashr(builder.sub(bits, i32(0x3F3504F3)), i32(23))
        return builder.bitcast(builder.sub(bits, builder.shl(n, i32(23))), ir.FloatType())

    return types.float32(types.float32), codegen


_f = np.float32
_ONE, _TINY, _ROUND = _f(1), _f(1.2e-38), _f(12582912.0)  # 1.5 · 2**23
_EXP_LOW, _LOG2E = _f(-87.0), _f(1.44269504)
_LN2_HIGH, _LN2_LOW = _f(0.693359375), _f(-2.12194440e-4)
# Minimax fits: exp(r) = 1 + r + r²·E(r) on |r| ≤ ln2/2 to 3e-9, log(1+r) = r·L(r) on
# sqrt(1/2) ≤ 1+r ≤ sqrt(2) to 3e-8.
_E0, _E1, _E2 = _f(1.3814467238e-3), _f(8.3687808365e-3), _f(4.1668392718e-2)
_E3, _E4 = _f(1.6666519642e-1), _f(4.9999994040e-1)
_L0, _L1, _L2 = _f(-1.0102771968e-1), _f(1.6420726478e-1), _f(-1.7333590984e-1)
_L3, _L4, _L5 = _f(1.9872955978e-1), _f(-2.4959325790e-1), _f(3.3336186409e-1)
_L6, _L7 = _f(-5.0000667572e-1), _f(9.9999982119e-1)
# φ(δ) = ½δ·tanh(δ/2) − log cosh(δ/2) = s·N(s)/D(s) in s = δ² ≤ 18², a rational minimax fit right
# to 1e-7; beyond, φ is log 2 to 4e-7. All coefficients are positive: no digit is lost. They are
# multiplied by 2**-24, so that e^shift · s · N(s) stays finite in whatever order it is computed.
_S = 2.0**-24
_N0, _N1, _N2 = _f(5.6487767e-07 * _S), _f(0.69247311 * _S), _f(108.26398 * _S)
_N3, _N4, _N5 = _f(7790.5693 * _S), _f(251798.58 * _S), _f(2269282.5 * _S)
_D0, _D1, _D2 = _f(_S), _f(155.71106 * _S), _f(11365.148 * _S)
_D3, _D4, _D5 = _f(345641.38 * _S), _f(4283674.5 * _S), _f(18154258 * _S)
_FAR = _f(324.0)
# The same in double precision for s ≤ 30², right to 2e-12; beyond, φ is log 2 to 4e-12.
_A0, _A1, _A2 = 9.1597242349622780e-19, 5.2804783579658499e-16, 2.0284415957089873e-13
_A3, _A4, _A5 = 4.6935777190220970e-11, 7.0872881262267625e-09, 6.7401195323008892e-07
_A6, _A7, _A8 = 3.9084866474327767e-05, 1.3052297590807674e-03, 2.1225742791764096e-02
_A9, _FAR64 = 0.12500000000022014, 900.0
_B0, _B1, _B2 = 1.3214687720467966e-18, 7.6181243018918850e-16, 2.9264145613659765e-13
_B3, _B4, _B5 = 6.7714835463965248e-11, 1.0224312538932099e-08, 9.7253513954821914e-07
_B6, _B7, _B8 = 5.6389032008305533e-05, 1.8693079658787254e-03, 3.3403691902401179e-02
_B9 = 0.29480594236349109


def exp(x):
    """e^x; the float32 version flushes to e^-87 instead of zero and vectorises."""


def log_less(x, shift):
    """log x − shift for x ≥ 0, zero counting as the smallest normal number.

    In float32 the shift, a whole number, is taken off before the fraction is added: exact there.
    """


def divide(x, y):
    """x / y; the float32 version is for finite numbers, y normal, right to about one unit."""


def jsd_cell(p, q, log_p, log_q):
    """p log(p/m) + q log(q/m) with m = ½(p + q): never negative, without cancellation."""


@overload(exp, jit_options={"fastmath": FAST})
def _exp_overload(x):
    if x == types.float32:

        def exp32(x):
            x = x if x > _EXP_LOW else _EXP_LOW
            shifted = _multiply_add(x, _LOG2E, _ROUND)
            n = subtract(shifted, _ROUND)
            r = _multiply_add(n, -_LN2_LOW, _multiply_add(n, -_LN2_HIGH, x))
            e = (((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4
            return _shift_exponent((e * r + _ONE) * r + _ONE, shifted)

        return exp32
    return lambda x: math.exp(x)


@overload(log_less, jit_options={"fastmath": FAST})
def _log_less_overload(x, shift):
    if x == types.float32:

        def log32(x, shift):
            x = x if x > _TINY else _TINY
            n = _exponent(x)
            r = _mantissa(x) - _ONE
            s = ((((((_L0 * r + _L1) * r + _L2) * r + _L3) * r + _L4) * r + _L5) * r + _L6) * r
            fraction = _multiply_add(n, _LN2_LOW, (s + _L7) * r)
            # The large part is exact and must be added last, whatever else could be contracted.
            return subtract(fraction, _multiply_add(n, -_LN2_HIGH, shift))

        return log32
    return lambda x, shift: (math.log(x) if x > 2.3e-308 else -708.0) - shift


@overload(divide, jit_options={"fastmath": FAST})
def _divide_overload(x, y):
    if x == types.float32 and y == types.float32:
        return lambda x, y: _estimate_quotient(x, y)
    return lambda x, y: x / y


@overload(jsd_cell, jit_options={"fastmath": FAST})
def _jsd_cell_overload(p, q, log_p, log_q):
    if p == types.float32:

        def cell32(p, q, log_p, log_q):
            delta = log_p - log_q
            s = delta * delta
            s = s if s < _FAR else _FAR
            above = ((((_N0 * s + _N1) * s + _N2) * s + _N3) * s + _N4) * s + _N5
            below = ((((_D0 * s + _D1) * s + _D2) * s + _D3) * s + _D4) * s + _D5
            return (p + q) * s * (above / below)

        return cell32

    def cell64(p, q, log_p, log_q):
        delta = log_p - log_q
        s = delta * delta
        s = s if s < _FAR64 else _FAR64
        above = ((((_A0 * s + _A1) * s + _A2) * s + _A3) * s + _A4) * s + _A5
        above = (((above * s + _A6) * s + _A7) * s + _A8) * s + _A9
        below = (((((_B0 * s + _B1) * s + _B2) * s + _B3) * s + _B4) * s + _B5) * s + _B6
        below = (((below * s + _B7) * s + _B8) * s + _B9) * s + 1.0
        return (p + q) * s * (above / below)

    return cell64
