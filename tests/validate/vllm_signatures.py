"""Signatures of vLLM's operators, as the shared objects of the wheel of 0.24.0 register them."""

FWD = (
    "fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, "
    "int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, "
    "Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
    "float softmax_scale, bool is_causal, int window_size_left, int window_size_right, float softcap, "
    "bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, "
    "Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"
)
OWN = (
    "cutlass_scaled_mm(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()",
    "dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale, Tensor? scale_ub) -> ()",
    "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
    "silu_and_mul(Tensor! result, Tensor input) -> ()",
    "per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, "
    "float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) -> ()",
    "machete_prepack_B(Tensor B, ScalarType a_type, int b_type, ScalarType? group_scales_type) -> Tensor",
    "machete_mm(Tensor A, Tensor B, int b_type, ScalarType? out_type, Tensor? group_scales, Tensor? group_zeros, "
    "int? group_size, Tensor? channel_scales, Tensor? token_scales, str? schedule) -> Tensor",
    "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, "
    "bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
)
CACHE = (
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping, "
    "str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()"
)
