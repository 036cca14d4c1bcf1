"""A file to fill in for an accelerator that the library does not have."""

from __future__ import annotations

__all__ = ["accelerator_template"]


def accelerator_template() -> str:
    """A commented accelerator file with example values; it loads as it stands.

    >>> accelerator_template().splitlines()[0]
    '# An accelerator for rooflinekit. Replace every value; delete optional lines that you do not know.'
    """
    return _ACCELERATOR


_ACCELERATOR = """\
# An accelerator for rooflinekit. Replace every value; delete optional lines that you do not know.
# Save it as my-chip.yaml and give its path (--gpu ./my-chip.yaml), or put it into your own hardware_specs folder
# ($ROOFLINEKIT_SPECS/hardware_specs, else ~/.config/rooflinekit/hardware_specs) and give its name (--gpu my-chip).
#
# Every number is a text with its unit. GB is 1e9 bytes, GiB is 2^30; Gb/s is bits, GB/s is bytes.
# Every section says how sure its numbers are: A two independent sources that were read, one vendor document that was
# read, or peaks that cores x rate x clock give; B one secondary source, or sources that disagree; C derived; and which
# of the `sources` below they come from.

title: Example Corp X1 96GB
aliases: [x1, example-x1]             # optional, on one line; other names that mean this file
vendor: Example Corp
architecture: X
compute_capability: ""                # optional; NVIDIA "9.0", AMD "gfx942"
release_year: 2025

compute:
  dense:                              # DENSE peaks; datasheets like to print the sparse ones, twice as high
    fp32: 60 TFLOP/s                  # vector rate; then any of tf32 bf16 fp16 fp8 int8 int4 nvfp4 mxfp4
    bf16: 800 TFLOP/s
    fp16: 800 TFLOP/s
    fp8: 1600 TFLOP/s
    int8: 1600 TOP/s
  flops_per_clock_per_core:           # optional, checks the peak against cores x rate x clock
    bf16: 4096 FLOP
  # unusual:                          # optional: why a ratio of two peaks is right though it looks wrong
  #   fp8: "runs at four times the 16-bit rate"
  confidence: C
  source: [datasheet]

memory:
  capacity: 95.6 GiB                  # what the driver shows (nvidia-smi: total, in MiB), not the marketing number
  label: 96 GB                        # the marketing number
  type: HBM3
  bandwidth: 4 TB/s
  confidence: C
  source: [datasheet]

cores:
  kind: SM                            # SM, CU, tensor core ...
  count: 120
  max_clock: 1.8 GHz                  # optional
  tensor_clock: 1.63 GHz              # optional: the clock that the peaks are defined at, if not the maximum
  l2: 50 MiB                          # optional
  # last_level_cache: 256 MiB         # optional: the cache in front of memory, where that is not the L2
  # shared_memory: 228 KiB            # optional: per core
  # tile_rows: 1                      # optional: rows that a matrix instruction takes; 64 if not given, 1 for a CPU
  confidence: C
  source: [datasheet]

links:
  kind: nvlink4                       # a name; pcie: the cards talk over PCIe; none: a single device
  bandwidth: 450 GB/s                 # to all peers together, ONE direction (datasheets often add both); not for pcie
  domain_size: 8                      # how many accelerators these links join
  nic: 400 Gb/s                       # optional: network per accelerator, one direction
  pcie: 63 GB/s                       # optional: to the host, one direction
  pcie_generation: 5                  # optional
  assumed:                            # optional, in any section: a number that no source gives, and why you take it
    domain_size: "8 cards per host is the common server"
  confidence: C
  source: [datasheet]

power:                                # optional
  tdp: 700 W
  confidence: C
  source: [datasheet]

price:                                # optional
  usd_per_hour: 3.00 USD/h            # per accelerator; low and high may be added
  date: "2026-01"                     # a price without a date is worth nothing
  basis: "list price of our provider"
  confidence: C
  source: [quote]

notes:                                # optional
  - "Example values: replace them."

sources:
  datasheet:
    title: "Example Corp X1 datasheet"
    url: https://example.com/x1
    read: true                        # false if you name it but did not open it
  quote:
    title: "Example Cloud price list"
    url: https://example.com/prices
    read: true
"""
