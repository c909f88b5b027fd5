"""The step loop and what one step is: supervised, from preferences, or online."""
