"""The target of a laptop: kfp.local runs the steps, LocalCluster the jobs and services that they launch."""
