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
def _round(typingctx, x):
    """The nearest whole number. (Adding and subtracting 1.5 · 2**23 would be reassociated away.)"""

    def codegen(context, builder, signature, args):
        return builder.call(
            builder.module.declare_intrinsic("llvm.rint", [ir.FloatType()]), [args[0]]
        )

    return types.float32(types.float32), codegen


@intrinsic
def _multiply_add(typingctx, x, y, z):
    """x·y + z, closed to reassociation: ln 2 in two parts must not be added up beforehand."""

    def codegen(context, builder, signature, args):
        f32 = ir.FloatType()
        function = ir.FunctionType(f32, [f32, f32, f32])
        return builder.call(builder.module.declare_intrinsic("llvm.fmuladd", [f32], function), args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def _shift_exponent(typingctx, mantissa, n):
    """float32 mantissa · 2**n for a whole number n."""

    def codegen(context, builder, signature, args):
        i32 = ir.IntType(32)
        bits = builder.shl(builder.fptosi(args[1], i32), i32(23))
        return builder.bitcast(builder.add(builder.bitcast(args[0], i32), bits), ir.FloatType())

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
_ONE, _HALF, _TINY = _f(1), _f(0.5), _f(1.2e-38)
_EXP_LOW, _LOG2E = _f(-87.0), _f(1.44269504)
_LN2_HIGH, _LN2_LOW, _LN2 = _f(0.693359375), _f(-2.12194440e-4), _f(0.69314718)
# exp(r) = 1 + r + r²·E(r) on |r| ≤ ln2/2 and log(1+r) = r − r²/2 + r³·L(r): minimax fits.
_E0, _E1, _E2 = _f(1.9875691500e-4), _f(1.3981999507e-3), _f(8.3334519073e-3)
_E3, _E4, _E5 = _f(4.1665795894e-2), _f(1.6666665459e-1), _f(5.0000001201e-1)
_L0, _L1, _L2 = _f(7.0376836292e-2), _f(-1.1514610310e-1), _f(1.1676998740e-1)
_L3, _L4, _L5 = _f(-1.2420140846e-1), _f(1.4249322787e-1), _f(-1.6668057665e-1)
_L6, _L7, _L8 = _f(2.0000714765e-1), _f(-2.4999993993e-1), _f(3.3333331174e-1)
# log(1+x)/x on 0 ≤ x ≤ 1/e: Chebyshev interpolation, right to 7e-8.
_U0, _U1, _U2 = _f(0.9999999268280013), _f(-0.4999856158902531), _f(0.33286675236659113)
_U3, _U4, _U5 = _f(-0.24432967403186304), _f(0.16748524011967209), _f(-0.0717960428503882)
# h(tanh(δ/2))/δ² with h(d) = ½[(1+d)log(1+d) + (1−d)log(1−d)] in δ² ≤ 1: the same, 2.5e-8.
_J0, _J1, _J2 = _f(0.12499999697488824), _f(-0.015624848433663938), _f(0.0017348854971857876)
_J3, _J4 = _f(-0.00018094778753096176), _f(1.4988164069951645e-05)


def exp(x):
    """e^x; the float32 version flushes to e^-87 instead of zero and vectorises."""


def log_less(x, shift):
    """log x − shift for x ≥ 0, zero counting as the smallest normal number.

    In float32 the shift, a whole number, is taken off before the fraction is added: exact there.
    """


def jsd_cell(p, q, log_p, log_q):
    """p log(p/m) + q log(q/m) with m = ½(p + q): never negative, exact to second order."""


@overload(exp, jit_options={"fastmath": FAST})
def _exp_overload(x):
    if x == types.float32:

        def exp32(x):
            x = x if x > _EXP_LOW else _EXP_LOW
            n = _round(x * _LOG2E)
            r = _multiply_add(n, -_LN2_LOW, _multiply_add(n, -_LN2_HIGH, x))
            e = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
            return _shift_exponent(e * (r * r) + r + _ONE, n)

        return exp32
    return lambda x: math.exp(x)


@overload(log_less, jit_options={"fastmath": FAST})
def _log_less_overload(x, shift):
    if x == types.float32:

        def log32(x, shift):
            x = x if x > _TINY else _TINY
            n = _exponent(x)
            r = _mantissa(x) - _ONE
            s = (((((((_L0 * r + _L1) * r + _L2) * r + _L3) * r + _L4) * r + _L5) * r + _L6) * r
                 + _L7) * r + _L8  # fmt: skip
            fraction = _multiply_add(n, _LN2_LOW, r + (s * r - _HALF) * (r * r))
            return _multiply_add(n, _LN2_HIGH, -shift) + fraction

        return log32
    return lambda x, shift: (math.log(x) if x > 2.3e-308 else -708.0) - shift


@overload(jsd_cell, jit_options={"fastmath": FAST})
def _jsd_cell_overload(p, q, log_p, log_q):
    if p == types.float32:

        def cell32(p, q, log_p, log_q):
            # With δ = |log p/q| and x = min/max the cell is (p+q)(log 2 − log(1+x)) − min·δ;
            # below δ = 1 that cancels, and (p+q)·h(tanh(δ/2)) is expanded in δ² instead.
            high, low = (p, q) if p > q else (q, p)
            delta, x = abs(log_p - log_q), low / high
            u = ((((_U5 * x + _U4) * x + _U3) * x + _U2) * x + _U1) * x + _U0
            far = (p + q) * (_LN2 - x * u) - low * delta
            s = delta * delta
            near = (p + q) * (s * ((((_J4 * s + _J3) * s + _J2) * s + _J1) * s + _J0))
            return near if delta < _ONE else far

        return cell32

    def cell64(p, q, log_p, log_q):
        delta = abs(log_p - log_q)
        x = math.exp(-delta)
        d = -math.expm1(-delta) / (1.0 + x)
        gap = 2.0 * x / (1.0 + x)  # 1 − d, without cancellation
        tail = gap * (math.log1p(-d) if d <= 0.5 else math.log(max(gap, 1e-300)))
        return 0.5 * (p + q) * ((1.0 + d) * math.log1p(d) + tail)

    return cell64
