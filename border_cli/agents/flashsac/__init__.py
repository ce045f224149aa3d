"""FlashSAC: SAC with normalised networks, categorical critics and normalised rewards."""
