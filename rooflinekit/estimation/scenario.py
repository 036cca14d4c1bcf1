"""The table of options: everything that a user can say, each once, with its type, default, unit, bounds and help.

The command line, the keywords of the Python functions, the columns of tables, the JSON Schema of inputs and the tables
of docs/cli.md are made from it. A class is a group of options; a command or a function takes some of the groups.
"""

# Annotations are read when a class is made, so they must not be texts here.
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Annotated, TypedDict

from rooflinekit.estimation.options import OptionRow, Unit, options_of

# One row an option, however long.
# fmt: off
Path = str | PathLike[str]
STEP = 10**18  # the largest size of a step, which is a closed form: no work grows with it
MODELS, GPUS, ENGINES, FORMATS = "model", "accelerator", "engine", "format"  # what a shell completes

# --- what is asked of a deployment -------------------------------------------------------------------------------------

class Lengths(TypedDict, total=False):
    """Tokens of a request."""
    isl: Annotated[int | str, OptionRow("Prompt length in tokens, or a distribution of them: uniform:100-200, lognormal:mean=900,cv=1.", 1024, unit="tokens", most=STEP)]
    osl: Annotated[int | str, OptionRow("Output length in tokens, or a distribution of them.", 256, unit="tokens", most=STEP)]

class Prefix(TypedDict, total=False):
    """Prefix that the cache already holds."""
    cached: Annotated[int, OptionRow("Prompt tokens that are already in the cache.", 0, least=0, unit="tokens", most=STEP)]

class Static(TypedDict, total=False):
    """A static batch."""
    batch: Annotated[int, OptionRow("Sequences in the batch.", 1, most=STEP)]
    context: Annotated[int | None, OptionRow("Decode at this context, not the mean over the output.", unit="tokens", most=STEP)]

class Users(TypedDict, total=False):
    """A closed loop."""
    concurrency: Annotated[int | None, OptionRow("Users who each wait for their answer, then ask again; excludes --batch.", also=("users",), most=10_000_000)]

class Objectives(TypedDict, total=False):
    """Latency objectives of users."""
    ttft: Annotated[float | None, OptionRow("Objective under load: time to first token.", unit="ms", above=True, also=("ttft_ms",))]
    tpot: Annotated[float | None, OptionRow("Objective under load: time per output token.", unit="ms", above=True, also=("tpot_ms",))]

class Spreads(TypedDict, total=False):
    """Lengths that vary from request to request."""
    isl_cv: Annotated[float | None, OptionRow("Variation of prompt lengths (deviation over mean); their mean is --isl.", usual="0", most=1e9)]
    osl_cv: Annotated[float | None, OptionRow("Variation of output lengths (deviation over mean).", usual="0", most=1e9)]

class RequestsOptions(Spreads, total=False):
    """Requests that come one after the other."""
    rate: Annotated[float | None, OptionRow("Requests a second that arrive; excludes --batch.", unit="1/s", above=True, most=1e9)]
    requests: Annotated[int | None, OptionRow("Requests in all: a run of so many, from an empty engine to the last answer.", usual="10 a user, or 2000 at a rate", most=1_000_000_000)]
    burstiness: Annotated[float | None, OptionRow("Variation of the gaps between arrivals, deviation over mean: 1 Poisson, 0 clockwork, more is bursty.", usual="1", most=1e9, also=("cv",))]

class Seed(TypedDict, total=False):
    """Draws of the requests."""
    seed: Annotated[int, OptionRow("Seed of lengths and arrivals.", 0, least=0)]

class Protocol(Seed, total=False):
    """The client's way of sending."""
    warmup: Annotated[int, OptionRow("Requests that come first and are not counted.", 0, least=0, most=1_000_000, usual="none, or a fifth of an open loop without --requests")]
    seed_reuse: Annotated[int | None, OptionRow("Different prompts of the client, sent again and again.", usual="no two are equal", most=10_000_000)]

class LoadOptions(Users, RequestsOptions, Objectives, Protocol, total=False):
    """Load and objectives of users."""

# --- how it is put on accelerators -------------------------------------------------------------------------------------

System = Annotated[str | None, OptionRow("Machine that holds the accelerators, such as hgx-h100 or gb200-nvl72, or a path.", usual="the usual one", group="Hardware")]

class AcceleratorOptions(TypedDict, total=False):
    """Accelerator of a deployment."""
    gpu: Annotated[Path, OptionRow("Accelerator: a name, or a path to its file.", "h100-sxm", complete=GPUS)]

class Hardware(TypedDict, total=False):
    """System of the accelerator, and its operation."""
    system: System
    power_cap: Annotated[float | None, OptionRow("Limit of each accelerator's power in W: arithmetic slows with the cube root, memory does not.", unit="W", above=True, usual="rated")]
    clock: Annotated[float | None, OptionRow("Locked core clock in MHz: arithmetic slows with it, memory does not.", unit=Unit("MHz", {"MHz": 1.0, "GHz": 1e3}, "1400 or 1.4GHz"), above=True, usual="the accelerator's")]

class Degrees(TypedDict, total=False):
    """Degrees of parallelism."""
    tp: Annotated[int, OptionRow("Tensor parallel degree.", 1)]
    pp: Annotated[int, OptionRow("Pipeline parallel degree.", 1)]
    ep: Annotated[int, OptionRow("Expert parallel degree, over tp · cp · dp ranks.", 1)]
    dp: Annotated[int, OptionRow("Attention data parallel degree.", 1)]

class Parallelism(Degrees, total=False):
    """Other options of a split."""
    cp: Annotated[int, OptionRow("Context parallel degree.", 1)]
    microbatches: Annotated[int, OptionRow("Parts of a batch that follow each other through the stages of pp, or between the groups of --ffn-gpus.", 1, most=4096)]
    sequence_parallel: Annotated[bool, OptionRow("Between blocks each of the tp ranks keeps its share of the tokens.", False)]
    all_reduce: Annotated[str, OptionRow("one_shot, two_shot, ring, in_switch, or auto: what the engine was measured with.", "auto", complete=("auto", "one_shot", "two_shot", "ring", "in_switch"))]
    all_to_all: Annotated[str, OptionRow("Kernels that bring tokens to their experts: deepep (its own), or auto (a collective).", "auto", complete=("auto", "deepep"))]
    two_batch: Annotated[bool, OptionRow("Two-batch overlap: halves of a step take turns, and one computes while the other's tokens travel (needs deepep).", False)]
    dispatch: Annotated[str | None, OptionRow("Format in which tokens travel to their experts.", usual="the stream's; fp8 with deepep", complete=FORMATS)]
    redundant_experts: Annotated[int, OptionRow("Copies of popular experts, over all ranks of a layer.", 0, least=0, most=4096)]
    skew: Annotated[float, OptionRow("Routing: the n-th most popular expert has weight n^-skew; 0 is uniform.", 0.0, most=4.0)]

class FormatsOptions(TypedDict, total=False):
    """Number formats."""
    weights: Annotated[str | None, OptionRow("Format of the layers' matrices.", usual="as published", complete=FORMATS)]
    attention_weights: Annotated[str | None, OptionRow("Format of attention's matrices alone.", usual="as --weights", complete=FORMATS)]
    lm_head: Annotated[str | None, OptionRow("Format of the LM head.", usual="as published", complete=FORMATS)]
    activations: Annotated[str | None, OptionRow("Format of matrix inputs.", usual="as published", complete=FORMATS)]
    kv: Annotated[str | None, OptionRow("Format of the cache.", usual="the engine's", complete=FORMATS)]

class EngineOptions(TypedDict, total=False):
    """The engine and what it is told."""
    engine: Annotated[str, OptionRow("vllm, sglang, trtllm, llama.cpp, gpt-fast, optimum-habana, or ideal (the bound, without engine costs); a version of it: vllm@0.8.5.", "vllm", complete=ENGINES)]
    engine_version: Annotated[str | None, OptionRow("Version of the engine, as engine=vllm@0.8.5 says it.", hidden=True)]
    memory_fraction: Annotated[float | None, OptionRow("Share of memory that the engine may use (gpu_memory_utilization, mem_fraction_static).", unit="share", above=True, most=1.0, usual="the engine's")]
    token_budget: Annotated[int | None, OptionRow("Tokens of one prefill step at most (max_num_batched_tokens, chunked_prefill_size; -ub of llama.cpp).", unit="tokens", short="ub", also=("ubatch_size",), usual="the engine's", most=10_000_000)]
    max_num_seqs: Annotated[int | None, OptionRow("Sequences that the engine runs at once.", usual="the engine's")]
    max_model_len: Annotated[int | None, OptionRow("Longest sequence that the engine admits.", unit="tokens", usual="the model's")]
    block_size: Annotated[int | None, OptionRow("Tokens of one block of the cache.", unit="tokens", usual="the engine's")]
    eager: Annotated[bool, OptionRow("Without CUDA graphs.", False)]
    offload_layers: Annotated[int, OptionRow("Layers that the host keeps and computes, the first ones (llama.cpp).", 0, least=0)]
    offload_experts: Annotated[str | None, OptionRow("Keep and compute the routed experts on the host: cpu (llama.cpp).", usual="the accelerator", complete=("cpu",))]
    n_cpu_moe: Annotated[int, OptionRow("Layers, the first ones, whose routed experts the host keeps and computes (llama.cpp).", 0, least=0)]
    host_bandwidth: Annotated[float | None, OptionRow("Bandwidth of the host's memory in GB/s, where it keeps weights.", unit="GB/s", above=True, usual="89.6: DDR5-5600, two channels")]
    kv_policy: Annotated[str, OptionRow("Keys that full attention reads and keeps: full, window:N, sink:F+R, topk:N or evict:N.", "full", group="Formats")]

class Steps(TypedDict, total=False):
    """Forming of the engine's steps under load."""
    policy: Annotated[str | None, OptionRow("Scheduling policy: chunked, continuous, chunked-prefill, prefill-priority ...", usual="the engine's", complete=("chunked", "continuous", "chunked-prefill", "prefill-priority", "decode-priority", "static"), group="Engine")]
    graph_tokens: Annotated[int | None, OptionRow("Largest step with prompts that replays CUDA graphs.", unit="tokens", least=0, usual="the engine's", group="Engine")]
    scheduler_recv_interval: Annotated[int, OptionRow("Decode steps between looks at the queue (SGLang).", 1, group="Engine", also=("receive_interval",))]
    batch_wait: Annotated[int, OptionRow("Steps for which prompts are gathered (TensorRT-LLM).", 0, least=0, group="Engine")]
    async_scheduling: Annotated[str | None, OptionRow("on or off: the host prepares the next step while one runs (vLLM; SGLang and TensorRT-LLM: overlap scheduler).", usual="the engine's", complete=("on", "off"), group="Engine")]
    prefix_caching: Annotated[str | None, OptionRow("on or off: prompts that come again are in the cache.", usual="the engine's", complete=("on", "off"), group="Engine")]
    front_end: Annotated[str, OptionRow("http, or token-ids: prompts come as token ids to the engine's own interface.", "http", complete=("http", "token-ids"), group="Engine")]
    api_servers: Annotated[int | None, OptionRow("Processes that read requests and stream answers (vLLM's --api-server-count).", usual="the engine's", also=("api_server_count",), most=1024, group="Engine")]
    stream_interval: Annotated[int, OptionRow("Tokens that the front end sends together.", 1, group="Engine")]
    host: Annotated[str | None, OptionRow("Host of the accelerators: h100-server, a100-server, mi300-server, gb10, or its time of a kernel's launch in us.", kind="text", usual="the accelerator's usual one", metavar="CLASS|US", group="Engine")]

class LayoutOptions(Hardware, Parallelism, FormatsOptions, EngineOptions, total=False):
    """Everything that lays out a plan."""
    calibration: Annotated[Path | None, OptionRow("A calibration's name or path, or none for the datasheet bound.", usual="that of GPU and engine", group="Engine")]

IMAGE_SIZE = "1024x1024"

class ImageInput(TypedDict, total=False):
    """Images of each prompt beside its text."""
    images: Annotated[int, OptionRow("Images in each prompt: their tokens join --isl, and the vision tower encodes them.", 0, least=0, most=10_000)]
    image_size: Annotated[str, OptionRow("Their width and height in pixels.", IMAGE_SIZE, metavar="WxH")]

class Adapters(TypedDict, total=False):
    """Adapters beside the weights."""
    lora_rank: Annotated[int, OptionRow("Rank of LoRA adapters on the layers' products; 0: none.", 0, least=0, most=4096, group="Engine")]
    lora_adapters: Annotated[int, OptionRow("Adapters that are loaded; sequences use any of them.", 1, most=100_000, group="Engine")]

class FfnGroup(TypedDict, total=False):
    """Feed-forward blocks on accelerators of their own."""
    ffn_gpus: Annotated[int, OptionRow("Accelerators of the feed-forward blocks, in --ep groups, beside tp · dp of attention: they take --microbatches in turns (AFD).", 0, least=0, group="Parallelism")]

class EncoderGroup(TypedDict, total=False):
    """An encoder of images on accelerators of its own."""
    encoder_gpus: Annotated[int, OptionRow("Accelerators that encode images and nothing else, beside those of the model (EPD).", 0, least=0, group="Parallelism")]

class Seeing(LayoutOptions, ImageInput, Adapters, total=False):
    """A plan, the images of its prompts, and adapters."""

class Placed(Seeing, FfnGroup, EncoderGroup, Steps, total=False):
    """All that lays out a deployment."""

class DraftOptions(TypedDict, total=False):
    """Draft of speculative decoding."""
    draft: Annotated[str | None, OptionRow("A draft model, medusa, eagle, eagle3, mtp or ngram.", complete=MODELS)]

class DraftingOptions(TypedDict, total=False):
    """Tokens that are guessed."""
    draft_tokens: Annotated[int | None, OptionRow("Tokens drafted in a row.", least=0, most=64)]
    acceptance: Annotated[float | str | Sequence[float] | None, OptionRow("Share of drafted tokens that are accepted, or one a position: 0.8,0.7,0.6.", kind="text")]

class SpeculationOptions(DraftOptions, DraftingOptions, total=False):
    """Speculative decoding."""
    draft_tree: Annotated[int | None, OptionRow("Drafted tokens that one pass verifies, where several candidates stand at each place.", most=4096)]
    draft_tp: Annotated[int | None, OptionRow("Tensor parallel degree of a draft model.", usual="the target's")]

class Scenario(Static, Lengths, Prefix, Placed, SpeculationOptions, LoadOptions, total=False):
    """Options of `estimate`, and a row of `estimate_frame`: a deployment, and a batch or a load."""
    allow_oom: Annotated[bool, OptionRow("Answer even if it does not fit in memory.", False, group="Output")]

# --- what other questions add ------------------------------------------------------------------------------------------

class Shapes(Prefix, Hardware, Parallelism, FormatsOptions, EngineOptions, total=False):
    """A walk through the tensors of a step."""
    tokens: Annotated[int | str | Sequence[int] | None, OptionRow("Prompt length, or several to pack without padding: 6,3,9.", kind="text", group="Workload")]
    prompt: Annotated[str | None, OptionRow("A text whose words and marks stand in for tokens.", group="Workload")]
    batch: Annotated[int, OptionRow("Prompts of that length, side by side.", 1, most=100_000, group="Workload")]

class Arrivals(TypedDict, total=False):
    """Arrivals at a simulated deployment."""
    arrivals: Annotated[str | None, OptionRow("An arrival process, such as gamma:rate=4,cv=2.")]
    trace: Annotated[Path | None, OptionRow("Replay a trace: Azure, Mooncake, BurstGPT, Bailian, splitwise-sim, CSV; lengths alone (ShareGPT too) with --rate.")]
    sessions: Annotated[str | None, OptionRow("Turns that wait for each other: chat, coding-agent or swe-bench; other means as chat:turns=6,wait=30,first=900,asked=100,system=0.", metavar="KIND")]
    speed: Annotated[float, OptionRow("Replay the trace this many times as fast.", 1.0)]
    clean: Annotated[bool, OptionRow("Drop rows of a trace that cannot be trusted.", False)]
    warmup: Annotated[int, OptionRow("Requests before those that count.", 0, least=0, most=1_000_000_000)]
    duration: Annotated[float, OptionRow("End after this much simulated time, in s.", unit="s", above=True, most=math.inf, usual="no end")]
    samples: Annotated[int, OptionRow("Outputs of each prompt.", 1, most=10_000)]
    shared_prefix: Annotated[int, OptionRow("Leading prompt tokens that requests have in common.", 0, least=0, unit="tokens")]
    prefix_groups: Annotated[int, OptionRow("Different shared prefixes.", 1)]
    classes: Annotated[str | Sequence[float] | None, OptionRow("Shares of priority classes, such as 0.2,0.8.", kind="text")]
    seed: Annotated[int, OptionRow("Seed of everything that is drawn.", 0, least=0, most=2**32 - 1)]

class TiersOptions(TypedDict, total=False):
    """Memory behind the accelerators' own."""
    cache_tier: Annotated[str | Sequence[str] | None, OptionRow("Memory behind the cache, nearest first, may be repeated: host=200GB,50GB/s or remote=20TB,5GB/s,1ms,shared.", kind="text", many=True, metavar="NAME=SIZE,...", group="Engine")]

class Scheduling(TiersOptions, total=False):
    """Scheduling and cache of each replica."""
    queue_limit: Annotated[int | None, OptionRow("Waiting requests beyond which new ones are rejected.", most=1_000_000_000)]
    order: Annotated[str | None, OptionRow("Order of the queue: fcfs, or priority by class.", usual="fcfs", complete=("fcfs", "priority"))]
    by_class: Annotated[bool, OptionRow("As order='priority'.", False, hidden=True)]
    swap: Annotated[bool, OptionRow("Preempt to host memory instead of computing again.", False)]
    kv_tokens: Annotated[int | None, OptionRow("Tokens that the cache of one replica holds.", unit="tokens", usual="as memory allows", most=10_000_000_000)]
    prefix_cache: Annotated[bool, OptionRow("Keep and share the blocks of prompt prefixes; as the engine does by default where prompts have known blocks.", False)]
    host_gib: Annotated[float, OptionRow("Host memory for cache blocks, per replica, in GiB.", 0.0, unit="GiB")]
    draft_ms: Annotated[float, OptionRow("Time to draft one token.", 0.0, unit="ms", group="Speculation")]

class FleetOptions(TypedDict, total=False):
    """Replicas, and how requests reach them."""
    replicas: Annotated[int, OptionRow("Replicas of the deployment; those that decode, if others prefill.", 1, most=1_000_000)]
    router: Annotated[str, OptionRow("round-robin, random, least-loaded, prefix-affinity or shared (one queue in front of all).", "round-robin", complete=("round-robin", "random", "least-loaded", "prefix-affinity", "shared"))]
    prefill_replicas: Annotated[int, OptionRow("Replicas that only compute prompts: disaggregation.", 0, least=0, most=1_000_000)]
    link_gb_s: Annotated[float | None, OptionRow("From a prefill to a decode replica, in GB/s.", unit="GB/s", above=True, usual="the NICs")]
    link_ms: Annotated[float, OptionRow("Latency of a transfer.", 0.0, unit="ms")]
    staging: Annotated[int, OptionRow("Prompts that a prefill replica computes or holds for transfer at most.", 64)]
    cells: Annotated[int, OptionRow("Parts of the fleet: a request goes to one at random, and its router knows that part alone.", 1, most=100_000)]
    hash_tokens: Annotated[int | None, OptionRow("Prompt tokens that one hash of an arrival stands for.", hidden=True)]

class Machines(TypedDict, total=False):
    """Machines for a large question."""
    workers: Annotated[int, OptionRow("Processes on this machine.", 1, kind="loose count", most=1024)]
    scheduler: Annotated[str | None, OptionRow("A dask cluster, such as tcp://10.0.0.1:8786.")]

class SimulationOptions(Lengths, Prefix, Seeing, EncoderGroup, Steps, LoadOptions, SpeculationOptions, Arrivals, Scheduling, FleetOptions, Machines, total=False):
    """Requests one by one."""

class PriceOptions(TypedDict, total=False):
    """Price of an accelerator hour."""
    price: Annotated[float | str | Mapping[str, float] | None, OptionRow("USD of one GPU hour: 2.5 for all, h100-sxm=2.10 for one (may be repeated); or 1800/month, 15000/year, EUR2.5@1.1 (at 1.1 dollars). Or a CSV with columns name, term, low, high, source, commitment, interruptions.", unit="USD/h", kind="price", many=True, usual="the GPU file's quote", also=("prices",))]

class Retention(LayoutOptions, TiersOptions, PriceOptions, total=False):
    """Hits of a prefix cache on a trace."""
    model: Annotated[str | None, OptionRow("Model whose replicas serve it: their memory is a cache too.", complete=MODELS, group="Workload")]
    clean: Annotated[bool, OptionRow("Drop rows of a trace that cannot be trusted.", False, group="Load")]
    replicas: Annotated[int, OptionRow("Replicas that share the requests, each with a cache of its own.", 1, most=10_000, group="Replicas")]
    router: Annotated[str, OptionRow("prefix-affinity (a conversation stays with its replica) or random.", "prefix-affinity", complete=("prefix-affinity", "random"), group="Replicas")]

class Pricing(PriceOptions, total=False):
    """Price of an accelerator hour."""
    pue: Annotated[float | None, OptionRow("Power of the building over power of the machines.", least=1.0, most=10.0, usual="1")]
    carbon: Annotated[str | float | None, OptionRow("Grams of CO2 a kWh, or a grid: world, france, germany, ireland ...", unit=Unit("g/kWh", {}), kind="text")]

class Rack(TypedDict, total=False):
    """Rack of the machines."""
    rack: Annotated[float | None, OptionRow("Power that a rack may draw at the plug: says how many machines it holds.", unit="W", kind="number", above=True, metavar="W")]

class PurchaseOptions(Pricing, total=False):
    """Purchase in place of rent."""
    purchase: Annotated[float | None, OptionRow("USD of one GPU with its share of the host, bought; needs --years.", unit="USD", kind="number")]
    years: Annotated[float | None, OptionRow("Years over which a purchase is spread.", unit="years")]
    power_price: Annotated[float | None, OptionRow("USD of one kWh, beside a purchase.", unit="USD", usual="0")]

class LeversOptions(Static, Prefix, Lengths, Users, RequestsOptions, Protocol, Placed, SpeculationOptions, PurchaseOptions, total=False):
    """Options of levers."""
    by: Annotated[str, OptionRow("Ranks the moves: cost, tpot, ttft, throughput or energy.", "cost", complete=("cost", "tpot", "ttft", "throughput", "energy"), metavar="METRIC", group="Question")]
    gpus: Annotated[str | Sequence[str] | Mapping[str, float | None] | None, OptionRow("Others to try, with USD an hour if you know it: h200-sxm=3.8,l40s.", usual="all with a price", complete=GPUS, kind="text", group="Question")]
    models: Annotated[str | Sequence[str] | None, OptionRow("Other models to compare: a,b.", complete=MODELS, group="Question")]
    prefix: Annotated[float | None, OptionRow("Share of each prompt that a prefix cache would hold.", unit="share", most=1.0, group="Question")]

class Dialogues(TypedDict, total=False):
    """Conversations, agents and long contexts to price."""
    turns: Annotated[int, OptionRow("Turns of a conversation.", 10, most=100_000)]
    question: Annotated[int, OptionRow("Tokens that each turn of it asks; --osl answer.", 100, unit="tokens", most=10_000_000)]
    system_prompt: Annotated[int, OptionRow("Tokens before its first turn.", 500, least=0, unit="tokens", most=10_000_000)]
    calls: Annotated[int, OptionRow("Calls of an agent's run.", 20, most=100_000)]
    agent_prompt: Annotated[int, OptionRow("Tokens before its first call: instructions, tools.", 4000, least=0, unit="tokens", most=10_000_000)]
    tool_result: Annotated[int, OptionRow("Tokens that each call of it reads.", 800, unit="tokens", most=10_000_000)]
    tool_call: Annotated[int, OptionRow("Tokens that each call of it writes.", 100, unit="tokens", most=10_000_000)]
    shared_prompt: Annotated[bool, OptionRow("Both prompts are in the cache already: others use them too.", False)]
    long_context: Annotated[int | None, OptionRow("Tokens of a long context.", least=2, unit="tokens", most=10_000_000, usual="131072, or the model's")]
    reserve: Annotated[int | None, OptionRow("Tokens that a static layout of the cache sets aside.", unit="tokens", most=10_000_000, usual="the longest")]

class CostOptions(Prefix, Lengths, Users, RequestsOptions, Protocol, LayoutOptions, Adapters, Steps, SpeculationOptions, PurchaseOptions, Rack, Dialogues, total=False):
    """Options of the cost of tokens."""
    rate: Annotated[float | None, OptionRow("Requests a second that arrive: the load is played, and its idle time is paid; excludes --concurrency and --utilisation.", unit="1/s", above=True, most=1e7, group="Load")]
    utilisation: Annotated[float, OptionRow("Share of the paid time that the replica works.", 1.0, unit="share", above=True, most=1.0, group="Pricing")]

Names = str | Sequence[str] | None
Counts = int | Sequence[int] | None

class Traffic(Lengths, Spreads, Prefix, Users, TiersOptions, total=False):
    """Traffic of a fleet."""
    rate: Annotated[float | None, OptionRow("Requests a second in the mean of the day.", unit="1/s", above=True, most=1e7)]
    trace: Annotated[Path | None, OptionRow("A trace of requests: rate, lengths and bursts come from it.")]
    sessions: Annotated[str | None, OptionRow("Turns of conversations or agents at --rate: chat, coding-agent or swe-bench, as in simulate.", metavar="KIND")]
    whole_hosts: Annotated[bool, OptionRow("Pay for whole hosts, whatever of them is used.", False)]
    router: Annotated[str | None, OptionRow("Router of requests to replicas: round-robin, random or least-loaded; with sessions or block ids prefix-affinity (a conversation stays with its replica) or random.", usual="round-robin; prefix-affinity with sessions or block ids", complete=("round-robin", "random", "least-loaded", "prefix-affinity"))]
    clean: Annotated[bool, OptionRow("Drop rows of a trace that cannot be trusted.", False)]
    classes: Annotated[Path | None, OptionRow("File of request classes, YAML or CSV: name, rate, lengths, objectives, priority and model of each.")]
    peak: Annotated[float | None, OptionRow("The busiest hour over the mean: the fleet is made for it, and paid all day.", least=1.0, most=1000.0, usual="1")]
    burstiness: Annotated[float | None, OptionRow("Variation of the gaps between arrivals: 1 is Poisson.", usual="1", most=1000.0, also=("cv",))]

class RequestClass(TypedDict, total=False):
    """One class of requests in a file of classes."""
    rate: Annotated[float | None, OptionRow("Requests a second in the mean.", unit="1/s", above=True, most=1e7)]
    isl: Annotated[int | str, OptionRow("Prompt length in tokens, or a distribution of them.", 1024, unit="tokens")]
    osl: Annotated[int | str, OptionRow("Output length in tokens, or a distribution of them.", 256, unit="tokens")]
    isl_cv: Annotated[float | None, OptionRow("Variation of prompt lengths, whose mean is isl.", usual="0", most=1e3)]
    osl_cv: Annotated[float | None, OptionRow("Variation of output lengths (deviation over mean).", usual="0", most=1e3)]
    cached: Annotated[float, OptionRow("Share of each prompt that a prefix cache finds.", 0.0, unit="share", most=0.999)]
    slo: Annotated[str | Sequence[str] | None, OptionRow("Objectives of the class.", kind="text", usual="--slo")]
    priority: Annotated[int, OptionRow("The lowest number is served first.", 0, least=0, most=1000, usual="0, of a job the last")]
    model: Annotated[str | None, OptionRow("The model that answers.", usual="MODEL")]
    requests: Annotated[int | None, OptionRow("Of a batch job in place of a rate: how many requests.", most=1_000_000_000)]
    deadline: Annotated[float | None, OptionRow("Deadline of a batch job.", unit="s", above=True)]

class Accelerators(TypedDict, total=False):
    """Accelerators to choose from."""
    gpu: Annotated[Names, OptionRow("Accelerators to choose from, comma between them.", "h100-sxm", kind="names", complete=GPUS)]

class Search(Steps, total=False):
    """Space of the search."""
    engine: Annotated[Names, OptionRow("Engines to choose from, comma between them.", "vllm", kind="names", complete=ENGINES, also=("engines",))]
    weights: Annotated[Names, OptionRow("Weight formats to choose from.", kind="names", usual="as published", complete=FORMATS)]
    kv: Annotated[Names, OptionRow("KV cache formats to choose from.", kind="names", usual="as activations", complete=FORMATS)]
    activations: Annotated[str | None, OptionRow("Format of the activations of all candidates.", usual="as published", complete=FORMATS)]
    tp: Annotated[Counts, OptionRow("Tensor parallel degrees to choose from, such as 2,4.", kind="counts", usual="powers of two within the scale-up domain")]
    pp: Annotated[Counts, OptionRow("Pipeline stages to choose from.", kind="counts", usual="1, more where nothing else holds the model")]
    ep: Annotated[Counts, OptionRow("Expert parallel degrees to choose from.", kind="counts", usual="1 and all ranks")]
    dp: Annotated[Counts, OptionRow("Attention replicas to choose from.", kind="counts", usual="powers of two with experts, else 1")]
    encoder_gpus: Annotated[Counts, OptionRow("Accelerators of a replica that encode images and nothing else, to choose from, such as 0,1,2.", kind="counts", least=0, usual="0: images are encoded by the model's own")]
    system: System
    max_gpus: Annotated[int | None, OptionRow("Accelerators of one replica at most.", usual="8, with experts 16")]
    token_budget: Annotated[Counts, OptionRow("Token budgets of a step to choose from.", kind="counts", usual="the engine's, 2048, 4096, 8192, 16384", also=("token_budgets",), most=10_000_000)]
    max_num_seqs: Annotated[Counts, OptionRow("Limits of running sequences to choose from.", kind="counts", usual="the engine's, 128, 256, 512")]
    memory_fraction: Annotated[float | None, OptionRow("Share of memory that the engine may use.", unit="share", above=True, most=1.0, usual="the engine's")]
    draft: Annotated[str | None, OptionRow("Draft that is tried beside none: eagle3, mtp, a model; none tries no draft.", usual="mtp where the checkpoint has it", complete=MODELS)]
    draft_tokens: Annotated[Counts, OptionRow("Tokens drafted in a row to choose from.", kind="counts", usual="1,3", most=64)]
    acceptance: Annotated[float | str | Sequence[float] | None, OptionRow("Share of drafted tokens that are accepted, or one a position.", kind="text", usual="as measured, for mtp and eagle3")]
    calibration: Annotated[Path | None, OptionRow("A calibration's name or path, or none for the datasheet bound.", usual="that of GPU and engine")]
    disaggregated: Annotated[bool, OptionRow("Pools for prefill and decode, too.", True, hidden=True)]
    mixed: Annotated[bool, OptionRow("Fleets and pools of two kinds of accelerator, too.", False)]
    aggregated_only: Annotated[bool, OptionRow("No pools for prefill and decode.", False)]
    one_kind: Annotated[bool, OptionRow("No fleets of two kinds of accelerator: the default.", False)]
    measured_only: Annotated[bool, OptionRow("Leave out what no measured kernels stand behind.", False)]
    seed: Annotated[int, OptionRow("Seed of the simulations.", 0, least=0, most=2**32 - 1)]
    by: Annotated[str, OptionRow("Ranks the fleets: least cost, gpus or energy (joules a token).", "cost", complete=("cost", "gpus", "energy"), metavar="QUANTITY")]

class Reserves(Pricing, Rack, total=False):
    """Money, and what is kept free."""
    limit: Annotated[str | Mapping[str, float] | None, OptionRow("The most accelerators of a kind, h100-sxm=16, or the most power at the meter, power=120kW (may be repeated).", kind="pairs", many=True, also=("limits",))]
    headroom: Annotated[float, OptionRow("Share of a replica's capacity that is kept free at the peak.", 0.0, unit="share", most=0.999)]
    redundancy: Annotated[int, OptionRow("Replicas that may fail at the peak: N+k.", 0, least=0, most=10_000)]
    spare: Annotated[str | int | None, OptionRow("Spare hosts or GPUs at the peak, in place of replicas: 1host or 2gpus. The fleet has as many more replicas.", usual="nothing", kind="text", metavar="COUNT")]
    confidence: Annotated[float, OptionRow("Probability with which every objective has to hold.", 0.9, unit="share", least=0.5, most=0.999)]
    load_gbps: Annotated[float | None, OptionRow("Rate at which weights come to a new replica, in GB/s.", unit="GB/s", above=True, most=1e6, usual="5")]

class OverTimeOptions(TypedDict, total=False):
    """Load over time."""
    profile: Annotated[Path | Sequence[float] | None, OptionRow("Load over time: a CSV of hour and rate, or trace for the hours of --trace. Adds the fleet by the hour.", kind="text")]
    growth: Annotated[str | float | None, OptionRow("Growth of the load: 8%/month or 100%/year.", usual="0", kind="text", metavar="SHARE")]
    autoscale: Annotated[bool, OptionRow("Play autoscaling policies through the profile, and recommend the cheapest that meets the objectives.", False)]
    cold_start: Annotated[Counts, OptionRow("Cold starts in minutes that are played beside the own one.", kind="counts", usual="2,5,8")]
    provision: Annotated[float | None, OptionRow("Of the own cold start: until a machine is there.", unit="s", usual="120")]
    weights_from: Annotated[str | None, OptionRow("Source of a new replica's weights: object-store, nvme or host-cache.", usual="nvme", complete=("object-store", "nvme", "host-cache"))]
    engine_start: Annotated[float | None, OptionRow("Until its engine serves, once it has them.", unit="s", usual="64")]
    min_replicas: Annotated[int, OptionRow("Replicas that an autoscaler keeps, the spare ones beside them.", 1)]
    max_replicas: Annotated[int | None, OptionRow("The most that it asks for.", usual="no limit")]
    cooldown: Annotated[float, OptionRow("Wait this long after the last peak before removing a replica.", 300.0, unit="s", least=15.0, most=86400.0)]
    tco: Annotated[Path | None, OptionRow("Rent against buy: a YAML of purchase, years, interest, residual, power_price, pue, rack, staff.")]
    months: Annotated[int, OptionRow("Months that are planned.", most=120, usual="1, with --growth 12")]

class PlanOptions(Traffic, ImageInput, Adapters, Search, Reserves, OverTimeOptions, total=False):
    """Options of a plan."""
    sensitivity: Annotated[bool, OptionRow("Size the answer again with each assumption a fifth less and more: rate, lengths, objectives, step times, price.", False, group="Search")]

class LoadCase(Lengths, Spreads, Seeing, total=False):
    """A deployment whose largest load is asked for."""
    burstiness: Annotated[float | None, OptionRow("Variation of the gaps between arrivals: 1 is Poisson.", usual="1", most=1000.0, also=("cv",))]

class StaticCase(Lengths, Prefix, Seeing, total=False):
    """A deployment whose largest batch or context is asked for."""
    batch: Annotated[int, OptionRow("Sequences of the static batch.", 1, most=STEP)]

class Rollout(TypedDict, total=False):
    """A training step of reinforcement learning."""
    samples: Annotated[int, OptionRow("Answers of each prompt, which share its tokens in the cache.", 1, most=100_000)]
    in_flight: Annotated[int | None, OptionRow("Partial rollouts: answers always under way.", usual="none", most=1_000_000)]
    rollout_gpus: Annotated[Counts, OptionRow("Accelerators that generate.", kind="counts", usual="1 to 128 replicas", most=1_000_000)]
    train_gpus: Annotated[int | None, OptionRow("Accelerators that train beside these, one step behind.", usual="the same", most=1_000_000)]
    train_mfu: Annotated[float, OptionRow("Share of the 16-bit peak that training gets.", unit="share", above=True, most=1.0, usual="0.25, with experts 0.025")]

class RolloutCase(Lengths, Spreads, LayoutOptions, Rollout, total=False):
    """A deployment that generates for training."""
    load_gbps: Annotated[float, OptionRow("Rate at which each replica gets new weights, in GB/s.", unit="GB/s", above=True, most=1e6, usual="16.6")]
    seed: Annotated[int, OptionRow("Seed of the lengths.", 0, least=0, most=2**32 - 1)]

# What is searched, priced and loaded besides on the command line alone: lists of accelerators, files, the inverse.

class InverseOptions(Static, Prefix, Objectives, Rollout, total=False):
    """The question of a plan the other way round."""
    rollout: Annotated[int | None, OptionRow("Size rollouts instead (RL): answers of a training step.", metavar="ANSWERS", most=1_000_000, group="Rollouts")]
    slo: Annotated[str | Sequence[str] | None, OptionRow("Objectives, such as 'p95 ttft<1s, p95 tpot<40ms'; without a percentile the mean. May be repeated: all have to hold.", kind="text", many=True, usual="p95 ttft<1s, p95 tpot<50ms", group="Load")]
    max: Annotated[str | None, OptionRow("Ask instead for the largest batch, context, rate or users.", complete=("batch", "context", "rate", "users"), metavar="QUANTITY")]
    budget: Annotated[float | None, OptionRow("With --max rate: USD a month that the whole fleet may cost. A --profile is scaled to it.", unit="USD/month", above=True)]
    find: Annotated[str | None, OptionRow("Ask instead for the least: gpus, bandwidth or price.", complete=("gpus", "bandwidth", "price"), metavar="QUANTITY")]
    subject_to: Annotated[str | None, OptionRow("Objectives of --max and --find: 'tpot<30ms,ttft<500ms'.")]
    details: Annotated[bool, OptionRow("Show how the fleet was sized, its latencies, power and intervals, why others lost, and the Pareto front.", False, short="v")]

class ServedOptions(Steps, total=False):
    """Facts of a benchmark run: what its files leave out."""
    model: Annotated[str | None, OptionRow("Model that was served.", usual="the file's", complete=MODELS)]
    gpu: Annotated[Path | None, OptionRow("Accelerator: a name, or a path to its file.", complete=GPUS, group="Hardware")]
    tp: Annotated[int | None, OptionRow("Tensor parallel degree.", group="Parallelism")]
    pp: Annotated[int, OptionRow("Pipeline parallel degree.", 1, group="Parallelism")]
    ep: Annotated[int, OptionRow("Expert parallel degree.", 1, group="Parallelism")]
    dp: Annotated[int, OptionRow("Attention data parallel degree.", 1, group="Parallelism")]
    replicas: Annotated[int | None, OptionRow("Copies of the deployment that shared the load.", usual="servers watched, or 1")]
    isl: Annotated[int | None, OptionRow("Mean prompt length in tokens.", unit="tokens")]
    osl: Annotated[int | None, OptionRow("Mean output length in tokens.", unit="tokens")]
    isl_cv: Annotated[float | None, OptionRow("Deviation of prompt lengths over their mean.", most=10.0)]
    osl_cv: Annotated[float | None, OptionRow("Variation of output lengths (deviation over mean).", most=10.0)]
    seed_reuse: Annotated[int | None, OptionRow("Different prompts of the client, sent again and again.", usual="no two are equal", most=10_000_000)]
    concurrency: Annotated[int | None, OptionRow("Requests that the client kept in flight.", also=("users",), most=10_000_000)]
    rate: Annotated[float | None, OptionRow("Requests a second that the client offered.", unit="1/s", above=True)]
    weights: Annotated[str | None, OptionRow("Weight format.", usual="as published", complete=FORMATS, group="Formats")]
    activations: Annotated[str | None, OptionRow("Activation format.", usual="as published", complete=FORMATS, group="Formats")]
    kv: Annotated[str | None, OptionRow("KV cache format.", usual="the engine's", complete=FORMATS, group="Formats")]
    engine: Annotated[str | None, OptionRow("Engine.", usual="the file's, else vllm", complete=ENGINES, group="Engine")]
    max_num_seqs: Annotated[int | None, OptionRow("Sequences that the engine runs at once.", usual="the file's, else the engine's", group="Engine")]
    token_budget: Annotated[int | None, OptionRow("Tokens of one prefill step at most.", unit="tokens", usual="the file's, else the engine's", most=10_000_000, group="Engine")]
    memory_fraction: Annotated[float | None, OptionRow("Share of memory that the engine may use.", unit="share", above=True, most=1.0, usual="the file's, else the engine's", group="Engine")]
    max_model_len: Annotated[int | None, OptionRow("Longest sequence that the engine admits.", unit="tokens", usual="the file's, else the model's", group="Engine")]
    calibration: Annotated[Path | None, OptionRow("A calibration's name or path, or none for the datasheet bound.", group="Engine")]

class Guarding(ServedOptions, total=False):
    """Basis of the judgement on a change."""
    baseline: Annotated[Sequence[str] | None, OptionRow("Earlier run of the same suite; may be repeated.", kind="text", many=True, usual="the prediction", metavar="FILE")]
    noise: Annotated[float | None, OptionRow("Deviation of one reading, where neither repeats nor the file say it.", unit="share", above=True, most=1.0, usual="3 %")]
    chance: Annotated[float, OptionRow("Probability that a run without a change alarms at all.", 0.02, unit="share", above=True, most=0.5)]
    unit: Annotated[str | None, OptionRow("Unit of the values of a CSV whose header names none.", complete=("s", "ms", "us", "µs", "ns", "TFLOPS", "TFLOP/s", "GFLOPS", "GFLOP/s", "GB/s", "TB/s", "tok/s", "1/s"))]

class Workbook(Lengths, total=False):
    """Choices of a workbook, and the first values of its cells."""
    model: Annotated[Names, OptionRow("Models to offer, comma between them.", kind="names", complete=MODELS)]
    gpu: Annotated[Names, OptionRow("Accelerators to offer, comma between them.", kind="names", complete=GPUS)]
    tp: Annotated[Counts, OptionRow("Tensor parallel degrees to offer.", kind="counts", usual="1,2,4,8")]
    pp: Annotated[Counts, OptionRow("Pipeline parallel degrees to offer.", kind="counts", usual="1")]
    ep: Annotated[Counts, OptionRow("Expert parallel degrees to offer.", kind="counts", usual="1")]
    dp: Annotated[Counts, OptionRow("Attention data parallel degrees to offer.", kind="counts", usual="1")]
    cp: Annotated[Counts, OptionRow("Context parallel degrees to offer.", kind="counts", usual="1")]
    microbatches: Annotated[Counts, OptionRow("Numbers of microbatches to offer.", kind="counts", usual="1", most=4096)]
    weights: Annotated[Names, OptionRow("Weight formats to offer; own: as published.", kind="names", usual="own,fp8", complete=FORMATS)]
    kv: Annotated[Names, OptionRow("KV cache formats to offer; own: as activations.", kind="names", usual="own", complete=FORMATS)]
    batch: Annotated[int, OptionRow("Sequences of the static batch.", 32, kind="loose count")]
    users: Annotated[int, OptionRow("Users in an average hour.", 1000, kind="loose count", also=("concurrency",))]
    requests: Annotated[float, OptionRow("Requests of a user in an average hour.", 12.0, kind="loose", most=1_000_000_000)]
    rate: Annotated[float | None, OptionRow("Requests a second, in place of users and requests.", unit="1/s", kind="loose")]
    peak: Annotated[float, OptionRow("Busiest hour over the average one.", 2.0, kind="loose")]
    headroom: Annotated[float, OptionRow("Share of a replica's capacity that stays free.", 0.2, unit="share", kind="loose")]
    ttft: Annotated[float, OptionRow("Objective: mean time to first token.", 1000.0, unit="ms", kind="loose")]
    tpot: Annotated[float, OptionRow("Objective: mean time per output token.", 50.0, unit="ms", kind="loose")]
    price: Annotated[float | str | Mapping[str, float] | None, OptionRow("USD of one GPU hour.", unit="USD/h", kind="price", many=True, usual="its file's")]
    out: Annotated[Path | None, OptionRow("File to write.", usual="workbook.xlsx", kind="path", group="Output")]

class Pictures(TypedDict, total=False):
    """Pictures of the answer."""
    plots: Annotated[Path | None, OptionRow("Write pictures into this folder, as SVG and PNG; made if its parent exists.", kind="folder")]

class Watching(TypedDict, total=False):
    """Options of watching a running fleet."""
    once: Annotated[bool, OptionRow("Look at one interval, and end.", False, group="Watching")]
    follow: Annotated[bool, OptionRow("Go on with logs of requests that grow, also after they were moved away or cut.", False, group="Watching")]
    every: Annotated[float, OptionRow("Seconds between two looks.", 60.0, unit="s", least=1.0, most=86400.0, group="Watching")]
    record: Annotated[Path | None, OptionRow("Append what the servers say to this file, to be watched or compared again.", kind="path", group="Watching")]
    update: Annotated[Path | None, OptionRow("Write a calibration to this file, with engine costs updated by these measurements.", kind="path", group="Watching")]
    listen: Annotated[int | None, OptionRow("Serve measured and predicted times as metrics at this port of 127.0.0.1.", least=1, most=65535, group="Watching")]

class WrittenOptions(TypedDict, total=False):
    """Format and file of an answer."""
    format: Annotated[str, OptionRow("table, json, csv or md.", "table", kind="choice", complete=("table", "json", "csv", "md"))]
    out: Annotated[Path | None, OptionRow("Write to this file instead; its folder must exist.", kind="path")]
    force: Annotated[bool, OptionRow("Overwrite an existing file.", False)]

class Reconciled(WrittenOptions, total=False):
    """Explanation of a disagreement."""
    why: Annotated[bool, OptionRow("Find the smallest changes of assumptions that explain each run.", False)]

class Listed(Static, Lengths, WrittenOptions, total=False):
    """Listed accelerators."""
    fits: Annotated[str | None, OptionRow("Only those that hold this model on one host: how many, time per token, price.", complete=MODELS, metavar="MODEL", group="Question")]

class Judged(WrittenOptions, total=False):
    """Files of a judgement."""
    junit: Annotated[Path | None, OptionRow("Write JUnit XML to this file too, a test a row.", kind="path")]

class Detailed(WrittenOptions, total=False):
    """Details of an estimate."""
    kernels: Annotated[bool, OptionRow("Show the kernels of prefill and decode, memory, energy and how intervals were tested.", False, short="v")]

class Tree(WrittenOptions, total=False):
    """Details of a derivation."""
    depth: Annotated[int | None, OptionRow("Levels of the tree.", usual="as fits on two pages")]

class TracedOptions(TypedDict, total=False):
    """Further files of a simulation."""
    timeline: Annotated[Path | None, OptionRow("Write queue, batch and cache over time to this CSV.", kind="path")]
    chrome_trace: Annotated[Path | None, OptionRow("Write every step to this JSON, for chrome://tracing or Perfetto.", kind="path")]
    resume: Annotated[bool, OptionRow("Keep finished cells beside --out, and use them.", False)]

class Sweeping(Machines, total=False):
    """Running of a sweep, and the rows that are kept."""
    set: Annotated[Sequence[str] | None, OptionRow("Any other keyword of estimate or simulate, as NAME=LIST; may be repeated.", kind="text", many=True, metavar="NAME=LIST")]
    sheet: Annotated[str | None, OptionRow("Sheet of a workbook.", usual="the first with scenarios")]
    simulate: Annotated[bool, OptionRow("Simulate each row, request by request.", False)]
    pareto: Annotated[str | None, OptionRow("Keep what nothing else beats, such as tok_s_user:tok_s_gpu.")]
    baseline: Annotated[str | None, OptionRow("Accelerator that the table of interactivity compares with.", usual="the first")]
    shard: Annotated[str, OptionRow("Answer only part i of n: i/n.", "1/1")]
    resume: Annotated[bool, OptionRow("Keep finished pieces beside --out, and use them.", False)]

class Launching(TypedDict, total=False):
    """Servers to start, and their place."""
    plan: Annotated[Path | None, OptionRow("File that `rooflinekit plan --format json` wrote, in place of MODEL.", kind="path", group="Replicas")]
    candidate: Annotated[int | None, OptionRow("Candidate of the plan, from 1.", usual="its best", kind="loose count", group="Replicas")]
    replicas: Annotated[int, OptionRow("Copies of the deployment.", 1, kind="loose count", most=10_000, group="Replicas")]
    host_gpus: Annotated[int, OptionRow("Accelerators of one host.", 8, kind="loose count", group="Replicas")]
    target: Annotated[str | None, OptionRow("Write a manifest instead: vllm-compose, kserve, llm-d, dynamo, lws or skypilot.", complete=("vllm-compose", "kserve", "llm-d", "dynamo", "lws", "skypilot"), group="Output")]
    out: Annotated[Path | None, OptionRow("Write to this file, or the files into this folder.", kind="folder", metavar="PATH", group="Output")]

class PageOptions(PriceOptions, total=False):
    """Subject of a page."""
    plan: Annotated[Path | None, OptionRow("Report on what `plan --format json` wrote, not on MODEL.", kind="path")]
    sweep: Annotated[Path | None, OptionRow("Report on rows of a sweep (.csv, .parquet), not on MODEL.", kind="path")]
    against: Annotated[str | None, OptionRow("Compare with another GPU, or with tp=4,weights=fp8.", complete=GPUS)]
    simulate: Annotated[int | None, OptionRow("Simulate so many requests of --rate or --concurrency too.", kind="loose count")]
    models: Annotated[Names, OptionRow("Models that the sliders offer besides, comma between.", kind="names", complete=MODELS)]
    gpus: Annotated[Names, OptionRow("Accelerators that the sliders offer besides.", kind="names", complete=GPUS)]
    engines: Annotated[Names, OptionRow("Engines that the page offers besides.", kind="names", complete=ENGINES)]
    out: Annotated[Path | None, OptionRow("File to write.", usual="report.html", kind="path", group="Output")]

class Measuring(TypedDict, total=False):
    """Measurements on this machine."""
    suite: Annotated[str, OptionRow("quick, full, ceilings, kernels, model or engine.", "quick", complete=("quick", "full", "ceilings", "kernels", "model", "engine"))]
    device: Annotated[str | None, OptionRow("cuda:0, cpu ...", usual="the first GPU, else the CPU")]
    model: Annotated[str | None, OptionRow("Model whose layers are measured.", usual="by device", complete=MODELS)]
    budget: Annotated[float | None, OptionRow("Minutes to take at most.", unit="min", above=True, usual="by suite")]
    gpu: Annotated[str | None, OptionRow("Accelerator to predict the model's steps for.", usual="by the device's name", complete=GPUS)]
    check: Annotated[bool, OptionRow("Check the kernels' results, measure nothing.", False)]
    engine: Annotated[str | None, OptionRow("Measure a server under load in place of kernels: llama.cpp, or vllm.", complete=("llama.cpp", "vllm"), called="engine to measure", group="Server")]
    server: Annotated[str | None, OptionRow("Address of llama.cpp's server, or the program to start.", usual="llama-server", group="Server")]
    concurrency: Annotated[Counts, OptionRow("Users of each run, who send one request after another.", [1, 2, 4, 8], kind="counts", also=("users",), group="Server", most=10_000_000)]
    isl: Annotated[int, OptionRow("Tokens of a prompt.", 128, unit="tokens", group="Server")]
    osl: Annotated[int, OptionRow("Tokens of an answer.", 64, unit="tokens", least=2, group="Server")]
    rounds: Annotated[int, OptionRow("Times that all runs are made; medians count.", 5, most=1000, group="Server")]
    out: Annotated[Path | None, OptionRow("Folder for the measurement file.", kind="folder")]
    force: Annotated[bool, OptionRow("Replace the measurement file that is there.", False)]
    resume: Annotated[bool, OptionRow("Go on with the run that is there.", False)]
    retry_failed: Annotated[bool, OptionRow("Go on with it, and measure once more what failed.", False)]

class Answering(TypedDict, total=False):
    """Time of a service for one answer."""
    seconds: Annotated[float, OptionRow("Longest time of one answer, in s.", 30.0, unit="s", above=True, most=3600.0)]

class Serving(Answering, total=False):
    """Address of a service."""
    host: Annotated[str, OptionRow("Address to listen on; another than this machine's own needs a token in ROOFLINEKIT_TOKEN.", "127.0.0.1")]
    port: Annotated[int, OptionRow("Port to listen on.", 8000, most=65535)]
    workers: Annotated[int | None, OptionRow("Processes that answer, beside one for quick questions.", most=64, usual="one a core")]
    site: Annotated[Path | None, OptionRow("Folder that `make site` wrote, for the playground at /.", usual="build/site of this checkout, else a page on one model", kind="path")]
    engine_of: Annotated[str | None, OptionRow("Serve as an engine at played times instead (OpenAI's interface): a MODEL with options of simulate, in quotes, or a plan's JSON file.", metavar="DEPLOYMENT", group="Engine")]
    time: Annotated[str, OptionRow("Of that engine: real; 0.1 for a tenth as fast; jump to each token at once; or held, until POST /clock moves it.", "real", metavar="real|NUMBER|jump|held", group="Engine")]
    streams: Annotated[int, OptionRow("Answers of that engine that are under way at most.", 1024, most=100_000, group="Engine")]

class Scored(WrittenOptions, total=False):
    """Settings beside measured tables."""
    calibration: Annotated[Path | None, OptionRow("A calibration's name or path, or none for the datasheet bound.", group="Engine")]
    gpu: Annotated[Path | None, OptionRow("File of your own accelerator, for the rows that name it.", group="Hardware")]

class Shown(WrittenOptions, total=False):
    """One entry, or a file to fill in."""
    template: Annotated[str | None, OptionRow("Print a file to fill in: gpu or model; or a Grafana dashboard, or Prometheus rules.", complete=("gpu", "accelerator", "model", "dashboard", "rules"))]

# --- names of groups, and of the keys that belong together -------------------------------------------------------------

GROUPS: Mapping[str, tuple[type, ...]] = {
    "Workload": (Static, Lengths, Prefix, ImageInput),
    "Hardware": (AcceleratorOptions, Hardware, Accelerators),
    "Parallelism": (Parallelism,),
    "Formats": (FormatsOptions,),
    "Engine": (EngineOptions, Scheduling),
    "Speculation": (SpeculationOptions,),
    "Load": (LoadOptions, Arrivals, Traffic, ServedOptions),
    "Replicas": (FleetOptions,),
    "Pricing": (PurchaseOptions, Reserves),
    "Dialogues": (Dialogues,),
    "Over time": (OverTimeOptions,),
    "Search": (Search,),
    "Rollouts": (Rollout,),
    "Question": (InverseOptions, Guarding),
    "Contents": (Workbook, PageOptions),
    "Output": (Machines, Sweeping, Measuring, Scored, Shown, Judged, Reconciled, Serving, Detailed, Tree, TracedOptions, Pictures),
}
"""Headings of the help, in their order; what an option says of its own group goes first."""

for _title, _tables in GROUPS.items():
    for _table in _tables:
        for _option in options_of(_table).values():
            _option.group = _option.group or _title


def complete(what: str | tuple[str, ...]) -> Sequence[str]:
    """Completions of a shell for an option: the names of its kind."""
    from rooflinekit.model.types.deployment import ENGINES as KNOWN  # noqa: PLC0415
    from rooflinekit.model.types.dtype import Dtype  # noqa: PLC0415
    from rooflinekit.specs import names  # noqa: PLC0415

    if not isinstance(what, str):
        return what
    if what in (ENGINES, FORMATS):
        return KNOWN if what == ENGINES else [each.value for each in Dtype]
    return sorted(names("model" if what == MODELS else "accelerator"))


WORKLOAD_KEYS = {
    name: option.default for table in (Static, Lengths, Prefix) for name, option in options_of(table).items()
}
DEGREES = ("tp", "pp", "ep", "dp", "cp", "microbatches")
SETTING_KEYS = ("memory_fraction", "token_budget", "max_num_seqs", "max_model_len", "block_size", "eager", *options_of(Steps))
DEPLOYMENT_KEYS = tuple(name for name in options_of(Placed) if name != "calibration")
SPECULATION_KEYS = tuple(options_of(SpeculationOptions))
LOAD_KEYS = tuple(options_of(LoadOptions))
