"""Write the schemas' files."""

from draftbench.schemas import write_schemas

write_schemas()
