"""The records that stages write and read: frozen, strict, schema-versioned, with a lossless JSON form."""
