"""The rooms through which the runtime asks the operating system."""

import os

if _wanted := os.environ.get("ASPEN_MP_INJECT"):
    from aspen_mp.system import injection

    injection.install(_wanted)
