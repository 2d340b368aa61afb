"""What the importers and converters of all libraries share."""
