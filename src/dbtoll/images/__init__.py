"""What an arm stands on: the system image and the datasets, built once, kept under the address of their recipe."""
