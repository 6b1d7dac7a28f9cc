"""Who is answered, and what is noted of it."""
