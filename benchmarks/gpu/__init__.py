"""Parts of `benchmarks/gpu_campaign.sh`: what must be seen on a GPU."""
