"""Launch: preflight, attach or create, watch, result, clean up; and the record of a step around it."""
