"""What is asked of a server. A workload is a package here with a class ``Workload`` (interfaces.Workload)."""
