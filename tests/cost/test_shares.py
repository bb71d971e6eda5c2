"""What the arguments of a kernel say about the rate it reaches."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from partitioner.cost import resolve
from partitioner.cost.kernels import Kernel, KernelTrace
from partitioner.cost.roofline import kernels_s
from partitioner.cost.shares import rate_share


def shares(function, *args, **kwargs):
    with KernelTrace() as trace:
        function(*args, **kwargs)
    return {kernel.share for kernel in trace.kernels}


@pytest.mark.parametrize(("channels", "share"), [(64, 0.25), (256, 1.0), (2048, 1.0)])
def test_batch_norm_needs_channels_to_fill_a_gpu(channels, share):
    mean, var = torch.zeros(channels), torch.ones(channels)
    x = torch.randn(2, channels, 3, 3)
    assert shares(F.batch_norm, x, mean, var, training=True) == {share}


def attention(**options):
    x = torch.randn(1, 2, 256, 8)
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return shares(call, x, x, x, **options)


def test_the_masked_half_of_causal_attention_is_skipped():
    assert attention(is_causal=True) == {2.0}


def test_dropout_slows_attention_down():
    dropped = {"query": torch.zeros(256, 8), "key": torch.zeros(256, 8)}
    assert rate_share("_flash_attention", dropped, ()) == 1.0
    assert rate_share("_flash_attention", {**dropped, "dropout_p": 0.1}, ()) == 0.5


def test_attention_works_in_whole_tiles():
    given = {"query": torch.zeros(197, 8), "key": torch.zeros(128, 8)}
    assert rate_share("_flash_attention", given, ()) == pytest.approx(197 / 256)


def test_a_share_stretches_the_kernel_but_not_its_launch():
    profile = resolve("h100")
    whole = kernels_s(profile, {Kernel(nbytes=10**9): 1}) - profile.launch_s
    half = kernels_s(profile, {Kernel(nbytes=10**9, share=0.5): 1}) - profile.launch_s
    assert half == pytest.approx(2 * whole)


def test_shares_are_a_gpus():
    profile = resolve("cpu")
    whole, half = Kernel(nbytes=10**9), Kernel(nbytes=10**9, share=0.5)
    assert kernels_s(profile, {whole: 1}) == kernels_s(profile, {half: 1})


def test_a_16_bit_convolution_of_three_channels_has_a_class_of_its_own():
    image, half = torch.randn(1, 3, 8, 8), torch.bfloat16
    with KernelTrace() as trace:
        F.conv2d(image.to(half), torch.randn(8, 3, 3, 3, dtype=half))
        F.conv2d(image, torch.randn(8, 3, 3, 3))
    found = {(k.dtype, k.operator_class) for k in trace.kernels if k.flops}
    assert found == {
        ("bfloat16", "narrow_convolution"),
        ("float32", "convolution"),
    }
