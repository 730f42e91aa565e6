"""The studio: plan, run and compare in the browser. ``fedgap studio`` serves it on this machine only."""
