"""A vendor that exists only to notice when the plugin API breaks."""
