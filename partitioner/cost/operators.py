"""What is known of each ATen operator: its FLOPs, or that it has none to count.

An operator in neither table is reported as unpriced. Names are ``aten.<name>`` without
the trailing underscore of the in-place form. Operators whose schema says that they
return a view move nothing and need no entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.flop_counter import flop_registry

from partitioner.cost.flops import FORMULAS, for_grouped_heads

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from partitioner.cost.profiles import OperatorClass

__all__ = [
    "ALLOCATIONS",
    "GATHERS",
    "UNCOUNTED",
    "formula",
    "operator_class",
    "plain_name",
]

_ALLOCATIONS = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize
    _unsafe_view _reshape_alias lift_fresh set_data record_stream resize_as
    unsafe_split unsafe_split_with_sizes
"""
ALLOCATIONS = frozenset(_ALLOCATIONS.split())
"""No kernel runs, or only one that the allocator hides."""

GATHERS = frozenset({"embedding", "gather", "index", "index_select", "take"})
"""Read only the rows that are asked for: the traffic is the output twice."""

_ELEMENTWISE = """
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu
    clamp clamp_max clamp_min copysign cos cosh deg2rad digamma div elu eq erf erfc
    erfinv exp exp2 expm1 fill floor floor_divide fmax fmin fmod frac ge gelu glu gt
    hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 isfinite isinf isnan
    isneginf isposinf le leaky_relu lerp lgamma log log10 log1p log2 log_sigmoid
    log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or
    logical_xor logit lt masked_fill maximum minimum mish mul mvlgamma nan_to_num ne neg
    nextafter polar polygamma pow prelu _prelu_kernel rad2deg reciprocal relu relu6
    remainder round rrelu_with_noise rsqrt rsub selu sgn sigmoid sign signbit silu sin
    sinc sinh softplus softshrink sqrt square sub tan tanh threshold trunc where xlogy
    complex conj_physical angle zero special_entr special_erfcx special_i0e special_i1
    special_log_ndtr special_ndtri special_xlog1py special_zeta igamma igammac
"""
_COPIES = """
    _to_copy _copy_from arange cat clone constant_pad_nd contiguous copy copy_out
    eye fill_diagonal flip full full_like linspace logspace new_full new_ones new_zeros
    ones ones_like pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
    reflection_pad3d repeat repeat_interleave replication_pad1d replication_pad2d
    replication_pad3d roll rot90 scalar_tensor split_with_sizes_copy stack tril
    tril_indices triu triu_indices
    zeros zeros_like channel_shuffle _pin_memory complex view_as_complex_copy
    nested_to_padded_tensor block_diag im2col col2im select_scatter slice_scatter
    diagonal_scatter as_strided_scatter
"""
_REDUCTIONS = """
    all amax amin aminmax any argmax argmin bincount count_nonzero cummax cummin cumprod
    cumsum _cummax_helper _cummin_helper dist histc kthvalue linalg_vector_norm
    logcumsumexp logsumexp max mean median min mode nanmean nanmedian nansum norm
    nonzero norm_except_dim prod std std_mean sum topk trace var var_mean sort argsort
    searchsorted bucketize unique_consecutive _unique2 unique_dim isin equal
    _weight_norm_interface
"""
_INDEXING = """
    _unsafe_index _unsafe_index_put embedding_renorm gather index index_add index_copy
    index_fill index_put _index_put_impl index_reduce index_select masked_scatter
    masked_select put scatter scatter_add scatter_reduce take one_hot embedding
    _embedding_bag _embedding_bag_forward_only
"""
_NORMALISATIONS = """
    _batch_norm_with_update _batch_norm_no_update _fused_rms_norm _log_softmax
    _native_batch_norm_legit _native_batch_norm_legit_no_training _safe_softmax _softmax
    batch_norm_elemt batch_norm_stats cudnn_batch_norm native_batch_norm
    native_group_norm native_layer_norm _masked_softmax renorm
"""
_POOLING = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d
    avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices
    fractional_max_pool2d max_unpool2d max_unpool3d grid_sampler_2d grid_sampler_3d
    upsample_bicubic2d upsample_bilinear2d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_trilinear3d affine_grid_generator
"""
_LOSSES = """
    _ctc_loss binary_cross_entropy binary_cross_entropy_with_logits huber_loss l1_loss
    mse_loss multi_margin_loss
    multilabel_margin_loss_forward nll_loss2d_forward nll_loss_forward smooth_l1_loss
    soft_margin_loss
"""
_RANDOM = """
    bernoulli cauchy exponential geometric log_normal multinomial native_dropout normal
    _fused_dropout poisson rand rand_like randint randint_like randn randn_like randperm
    random uniform _sample_dirichlet _standard_gamma binomial
"""
_SCALARS = "_local_scalar_dense item is_nonzero _assert_async _assert_scalar"
_BACKWARD = """
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _cdist_backward
    _ctc_loss_backward _embedding_bag_backward _embedding_bag_dense_backward
    _embedding_bag_per_sample_weights_backward _fused_rms_norm_backward
    _log_softmax_backward_data _prelu_kernel_backward _safe_softmax_backward
    _softmax_backward_data _masked_softmax_backward _upsample_bicubic2d_aa_backward
    _upsample_bilinear2d_aa_backward _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
    _weight_norm_interface_backward adaptive_max_pool2d_backward
    adaptive_max_pool3d_backward avg_pool2d_backward avg_pool3d_backward
    batch_norm_backward binary_cross_entropy_backward cudnn_batch_norm_backward
    diagonal_backward elu_backward embedding_backward embedding_dense_backward
    gelu_backward glu_backward grid_sampler_2d_backward grid_sampler_3d_backward
    hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward
    huber_loss_backward index_select_backward leaky_relu_backward log_sigmoid_backward
    logit_backward masked_scatter_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward mish_backward mse_loss_backward
    multi_margin_loss_backward multilabel_margin_loss_backward
    native_batch_norm_backward native_dropout_backward native_group_norm_backward
    native_layer_norm_backward nll_loss2d_backward nll_loss_backward
    reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
    replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
    rrelu_with_noise_backward select_backward sigmoid_backward silu_backward
    slice_backward smooth_l1_loss_backward soft_margin_loss_backward softplus_backward
    softshrink_backward tanh_backward threshold_backward unfold_backward
    upsample_bicubic2d_backward upsample_bilinear2d_backward upsample_linear1d_backward
    upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
    upsample_trilinear3d_backward value_selecting_reduction_backward _unsafe_index_put
"""

_NORMALISES = frozenset(
    {"native_layer_norm", "native_group_norm", "_fused_rms_norm", "_softmax"}
)

UNCOUNTED = frozenset(
    " ".join(
        [
            _ELEMENTWISE, _COPIES, _REDUCTIONS, _INDEXING, _NORMALISATIONS, _POOLING,
            _LOSSES, _RANDOM, _SCALARS, _BACKWARD,
        ]
    ).split()
)  # fmt: skip
"""Operators without multiply-adds worth counting: their bytes alone set their time."""


def plain_name(operator: Any) -> str:
    """Return an operator packet's name without namespace ``aten`` and in-place mark."""
    name = str(operator)
    if not name.startswith("aten."):
        return name
    name = name.removeprefix("aten.")
    return name.removesuffix("_") if not name.endswith("__") else name


def formula(operator: Any) -> Callable[..., int] | None:
    """Return the function arguments → FLOPs of an operator packet, or None.

    Sources: ``torch.utils.flop_counter`` (one multiply-add is two FLOPs; users extend
    it with ``register_flop_formula``), then this package's own formulas.
    """
    found: Callable[..., int] | None = flop_registry.get(operator)
    name = plain_name(operator)
    found = found or FORMULAS.get(name)
    if found and name.startswith("_scaled_dot_product_flash_attention"):
        return for_grouped_heads(name, found)
    return found


def operator_class(name: str, *, counted: bool) -> OperatorClass:
    """Return the class whose efficiency holds for a plain operator name.

    Args:
        name: As :func:`plain_name` gives it.
        counted: Whether it has FLOPs.
    """
    if "batch_norm" in name:
        return "batch_norm"
    if name.removesuffix("_backward") in _NORMALISES:
        return "normalisation"
    if not counted:
        return "other"
    if "attention" in name:
        return "attention"
    if "conv" in name:
        return "convolution"
    return "matmul"
