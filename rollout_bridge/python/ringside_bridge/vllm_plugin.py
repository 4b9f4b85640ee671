"""What vLLM calls in each of its processes when this package is installed (entry point group vllm.general_plugins):
makes `--weight-transfer-config '{"backend": "ringside"}'` known. Nothing else of vLLM changes."""


def register() -> None:
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    try:
        WeightTransferEngineFactory.register_engine("ringside", "ringside_bridge.vllm_engine", "RingsideTransferEngine")
    except ValueError:
        pass  # a second call in one process: it is registered
