"""What the components' bodies call: the step around the work, and the work itself.

It stands apart from the components, because kfp strips its dsl inside a running step: no component's module can be
imported there.
"""
