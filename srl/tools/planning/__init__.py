"""`srl plan`: how fast a run will be on machines that are not there."""
