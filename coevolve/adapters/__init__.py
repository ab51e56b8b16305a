"""The environments under the interfaces of other trainers: Gymnasium, OpenEnv, verifiers."""
