package recipe
