"""Models on their way to a server: fetched, checked, converted, scaled, kept in one folder."""
