"""What a kernel costs: measured times from the profile database, estimates where there are none."""
