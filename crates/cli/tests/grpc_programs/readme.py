"""Runs the programs of the published Python client's description, one after the other, against the server at an address.

They check by themselves what they read. What needs other packages or a certificate is left out, and so is what is about
projections, which the server does not have. The last line tells how many were run.
"""

import importlib.metadata
import re
import sys

ADDRESS = sys.argv[1]
NEEDS_MORE = ("projection", "ssl.get_server_certificate", "os.getenv", "class RecordedEvent", "fastapi", "opentelemetry")

text = importlib.metadata.metadata("kurrentdbclient").get_payload()
blocks = re.findall(r"```python\n(.*?)```", text, re.S)
names, count = {}, 0
for number, block in enumerate(blocks):
    if any(word in block for word in NEEDS_MORE):
        continue
    exec(compile(block.replace("localhost:2113", ADDRESS), f"program {number}", "exec"), names)
    count += 1
print(f"{count} of {len(blocks)} ran")
