"""Read and write the application's tables: messages, tag_views and the tables beside them."""
