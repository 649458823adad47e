"""Search among images and texts with a dual encoder: the index of images, the exact ranking, what was found."""
