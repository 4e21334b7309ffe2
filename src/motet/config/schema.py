"""Every setting of a run, on one page. The docstring under a field is its documentation (docs/configuration.md).

The model is frozen and refuses unknown keys. Import-light on purpose: `motet --help` and config checks load no torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class ModelConfig(Section):
    path: str
    """Hugging Face folder of the model: config, weights, tokenizer, processor, chat template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the forward and backward pass. Master weights and optimizer state are always float32."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: CUDA where there is one."""


class ImageConfig(Section):
    min_pixels: int | None = Field(None, ge=1)
    """Smaller images are enlarged to this many pixels (height x width). Unset: the model's own processor decides."""
    max_pixels: int | None = Field(None, ge=1)
    """Larger images are shrunk to this many pixels. Unset: the model's own processor decides."""


class VideoConfig(Section):
    fps: float = Field(2.0, gt=0)
    """Frames per second given to the model; beside sound, the nearest of 2, 1, 2/3, 1/2 and so on."""
    max_frames: int = Field(64, ge=2)
    """Longer videos are sampled evenly down to this many frames."""
    min_pixels: int | None = Field(None, ge=1)
    """Smaller frames are enlarged to this many pixels. Unset: the model's own processor decides."""
    max_pixels: int | None = Field(None, ge=1)
    """Larger frames are shrunk to this many pixels. Unset: the model's own processor decides."""


class DataConfig(Section):
    train: str
    """Rows to train on: a JSONL or parquet file, or a folder written by `datasets.save_to_disk`."""
    heldout: str | None = None
    """Rows to evaluate on. Unset: no evaluation."""
    media_roots: tuple[str, ...] = ()
    """Folders that media paths may lie in. Empty: the folder of the row file."""
    url_hosts: tuple[str, ...] = ()
    """Hosts that media may be fetched from over http(s); `*` is every public one. Empty: none."""
    max_file_bytes: int = Field(1 << 30, ge=1)
    """Larger media files are refused before they are read."""
    decode_workers: int = Field(2, ge=0)
    """Processes that fetch and decode media. 0: in this process, without a deadline."""
    decode_timeout_seconds: float = Field(60.0, gt=0)
    """Deadline for fetching and decoding one clip."""
    cache_bytes: int = Field(1 << 30, ge=0)
    """Memory for decoded clips, and as much for rendered prompts; those used last are kept."""
    shuffle: bool = True
    """A new order every epoch, by `seed`; otherwise file order."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """What a row that cannot be read does: end the run with its name and reason, or be skipped and counted."""
    max_prompt_tokens: int = Field(8192, ge=1)
    """Longer prompts are dropped before sampling and counted; nothing is ever cut inside a media span."""
    image: ImageConfig = ImageConfig()
    video: VideoConfig = VideoConfig()


class FeaturesConfig(Section):
    source: Literal["trainer", "off"] = "trainer"
    """Who runs the towers: `trainer`, once per clip, kept for sampler and trainer; `off`, each of them every time."""
    memory_bytes: int = Field(1 << 30, ge=0)
    """Memory for encoder outputs; those used last are kept."""
    folder: str | None = None
    """A second tier on disk, or in `/dev/shm`, that runs may share. Unset: memory alone."""
    folder_bytes: int = Field(16 << 30, ge=0)
    """Size of that folder; the files used longest ago are deleted."""


class EmbeddedConfig(Section):
    kind: Literal["embedded"] = "embedded"
    """Samples in this process, with the trainer's own module."""
    max_sequences: int = Field(256, ge=1)
    """Sequences decoded side by side."""


class RolloutConfig(Section):
    engine: EmbeddedConfig = EmbeddedConfig()
    """What samples."""
    groups_per_step: int = Field(16, ge=1)
    """Prompts that one optimizer step learns from (P)."""
    group_size: int = Field(8, ge=1)
    """Completions per prompt (G)."""
    max_tokens: int = Field(256, ge=1)
    """Longest completion."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; log-probabilities are those of the tempered distribution."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Below 1 is refused in training: the reported log-probability would not be the policy's."""
    top_k: int = Field(0, ge=0)
    """Above 0 is refused in training, for the same reason."""


class ChoiceConfig(Section):
    kind: Literal["choice"] = "choice"
    """Multiple choice: the final letter, or the one in an `<answer>` tag, against the row's answer."""
    format_weight: float = Field(0.0, ge=0, le=1)
    """Share of the reward for answering in the right form; the rest is for being right."""


class MathConfig(Section):
    kind: Literal["math"] = "math"
    """The final number or expression (`\\boxed{}` or `<answer>` accepted) equals the row's answer."""


class FunctionConfig(Section):
    kind: Literal["function"] = "function"
    """Your own function."""
    path: str
    """`package.module:function`; it takes `(task, completion)` or, with `per = "group"`, `(task, completions)`."""
    per: Literal["completion", "group"] = "completion"
    """Whether the function scores one completion or the whole group. It may be async."""


class RewardConfig(Section):
    score: Annotated[ChoiceConfig | MathConfig | FunctionConfig, Field(discriminator="kind")] = ChoiceConfig()
    """What scores a group."""
    timeout_seconds: float = Field(60.0, gt=0)
    """Deadline for scoring one group, where a function of yours does it; the built-in rewards take no time."""


class AlgorithmConfig(Section):
    kind: Literal["grpo", "dr_grpo", "rloo", "dapo", "gspo", "cispo"] = "grpo"
    """The policy-gradient method; each is one page under `motet/algorithms`."""
    scale: Literal["std", "none"] | None = None
    """GRPO, DAPO, GSPO and CISPO: divide the centred reward by the group's standard deviation, or not. Unset: `std`."""
    clip_low: float | None = Field(None, gt=0)
    """Lower clip distance of the ratio. Unset: the method's own default."""
    clip_high: float | None = Field(None, gt=0)
    """Upper clip distance of the ratio. Unset: the method's own default."""
    kl_weight: float = Field(0.0, ge=0)
    """Weight of the k3 estimate of KL(policy || frozen reference). 0: no reference is held."""


class OptimizerConfig(Section):
    lr: float = Field(1e-6, gt=0)
    """Peak learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the first and second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled; not applied to biases and norms."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this global norm."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear rise to the peak."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the rise, over the remaining steps."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Where the schedule ends, as a share of the peak."""


class LoraConfig(Section):
    rank: int = Field(16, ge=1)
    """Of the two factors of each adapter."""
    alpha: float = Field(32.0, gt=0)
    """Adapters count alpha / rank times."""
    targets: tuple[Literal["attention", "experts"], ...] = Field(("attention",), min_length=1)
    """What they are put on: the four projections of attention, the three of every expert."""


class TrainerConfig(Section):
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig | None = None
    """Train low-rank adapters and leave the model's own weights as they are. Needs `pip install 'motet[lora]'`.
    Unset: train all but the towers."""
    row_tokens: int = Field(8192, ge=1)
    """Length of a packed row; a longer sample gets a row of its own."""
    vocab_chunk_tokens: int = Field(1024, ge=1)
    """Positions whose logits are held at once."""
    max_initial_mismatch: float = Field(0.05, gt=0)
    """Bound on the mean |new - old| log-probability of the first step after start or resume; beyond it the run
    stops and names the modality and position."""


class EvalConfig(Section):
    every_steps: int = Field(20, ge=1)
    """Held-out accuracy is measured before the first step, every so many steps, and at the end."""
    max_rows: int | None = Field(None, ge=1)
    """Evaluate on the first rows only. Unset: all."""
    max_tokens: int | None = Field(None, ge=1)
    """Longest answer. Unset: as in rollout."""
    alarm_drop: float = Field(0.1, gt=0)
    """A fall this far below the best held-out accuracy raises an alarm."""


class CheckpointConfig(Section):
    every_steps: int = Field(50, ge=1)
    """How often to save; the last step is always saved."""
    keep_last: int = Field(2, ge=1)
    """Older ones are deleted; the best by held-out accuracy is always kept."""
    keep_every_steps: int | None = Field(None, ge=1)
    """Keep those whose step is a multiple of this as well. Unset: none."""


class MetricsConfig(Section):
    tensorboard: bool = True
    """Write TensorBoard events beside `metrics.jsonl`."""
    wandb: str | None = None
    """Project of Weights & Biases that metrics and settings are sent to; `pip install 'motet[wandb]'`. Unset: none.
    `WANDB_MODE=offline` writes them into the run folder instead."""
    report_groups: int = Field(12, ge=0)
    """Groups shown in the report with their media."""


class RunConfig(Section):
    run_dir: str
    """Folder of the run: config, metrics, checkpoints, report, summary."""
    seed: int = 0
    """Of data order, sampling and everything else that draws."""
    steps: int = Field(100, ge=1)
    """Optimizer steps."""
    max_lag: int = Field(0, ge=0)
    """How many weight versions old the data of a step may be. 0: exactly on-policy."""
    deadline_seconds: float = Field(3600.0, gt=0)
    """Longest that a stage of a step (rollout, train, publish, eval, save) may take. Beyond it the stacks of all
    threads go to `stalled.txt` in the run folder, and the run ends."""
    model: ModelConfig
    data: DataConfig
    features: FeaturesConfig = FeaturesConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()
